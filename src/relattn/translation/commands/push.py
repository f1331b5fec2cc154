"""`relattn push`"""


def push(bundle: str, name: str, *, private: bool = False, license: str = "") -> None:
    """Upload a bundle to the Hugging Face hub, and print the address of its page.

    Args:
        bundle: Directory of the bundle.
        name: Name on the hub, USER/MODEL or ORGANISATION/MODEL.
        private: Make the repository private.
        license: Licence of the model, by its name on the hub: mit, apache-2.0, ...
    """
    from relattn.translation import hub

    print(hub.push(bundle, name, private=private, license=license))

"""Print which classes of the installed transformers compute a relative term, and which of them relattn covers."""

from relattn.integrations.transformers.coverage import page

if __name__ == "__main__":
    print(page())

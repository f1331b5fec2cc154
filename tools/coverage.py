"""Write docs/reference/coverage.md: classes of transformers with a relative term, and which of them relattn covers.

    python -m tools.coverage

The sources of the models are searched for names that relative terms have. No model is imported, except those of the
supported families. Rotary positions are not listed: they add no term to the scores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import transformers
from relattn.integrations.transformers.families import load_families

from tools import DOCS

PAGE = DOCS / "reference" / "coverage.md"
SCHEMES = (  # names in the code of a class, and the heading of docs/family.md; the first that matches counts
    (r"c2p|p2c", "DeBERTa"),
    (r"rel_pos_h|decomposed_rel_pos", "SAM"),
    (r"relative_position_bias_table|relative_position_index|relative_position_bias\b|attention_bias_idxs", "Swin"),
    (r"rel_2d_pos|RelativePositionBias(Horizontal|Vertical)", "Pair bias"),
    (r"rel_logits|RelativeLogits", "Inkling"),
    (r"distance_embedding|emb_rel_k|\bpe_k\b", "Shaw"),
    (r"pos_bias_u|\bbias_u\b|r_r_bias|rel_shift|relative_k_proj|linear_pos\b", "Transformer-XL"),
    (r"rel_pos_emb\b", "Granite Speech"),
    (r"\balibi\b", "ALiBi"),
    (r"rel_attn_embed|gru_rel_pos", "WavLM"),
    (r"relative_attention_bias|relative_position_bucket|AudioRelativeAttentionBias|position_bias", "T5"),
    (r"bbox_pos_scores|for b in biases|a \+ bias\.permute|\bpt_att\b", "Pair bias"),
    (r"relative_pos|rel_pos", ""),
)
OTHERS = {  # beginnings of "folder.Class": the heading of another scheme, or why the operator cannot express it
    "cpmant.": ("Pair bias", ""),
    "esm.EsmFoldInvariantPoint": ("", "distances of points enter the scores, and points and pairs the values"),
    "esmfold2.": ("", "the term enters a representation of pairs, not scores"),
    "funnel.": ("", "pooled queries: distances are not j − i"),
    "gemma3n.": ("", "a tanh bounds the scores before the softmax"),
    "gemma4.": ("", "a tanh bounds the scores before the softmax"),
    "inkling": ("Inkling", ""),
    "layoutlmv3.": ("Pair bias", ""),
    "longt5.LongT5TransientGlobal": ("", "global tokens"),
    "mpnet.": ("T5", ""),
    "mpt.": ("ALiBi", ""),
    "pp_doclayout_v2.": ("Pair bias", ""),
    "prophetnet.": ("", "its n-gram streams attend to two sequences with different distances"),
    "udop.Udop": ("Pair bias", ""),
}
NAME = re.compile(r"Attention|Relative")
HOLDS_ATTENTION = re.compile(r"self\.(self|attn|\w*[aA]ttention)\s*=\s*[A-Z]")  # a layer around an attention
DOCSTRING_OR_COMMENT = re.compile(r'"""(?:.|\n)*?"""|#.*')


def coverage() -> Iterator[tuple[str, str, str]]:
    """Yield the model, the class and its status, for each class with a relative term, by name."""
    enabled = {patch.class_path for family in load_families() for patch in family.patches}
    for path in sorted(Path(transformers.__file__).parent.glob("models/*/modeling_*.py")):
        model = path.parent.name
        for name, code in classes(path.read_text(encoding="utf-8")):
            if (scheme := scheme_of(code)) is not None:
                is_enabled = f"{model}.{path.stem}.{name}" in enabled
                yield model, name, "*enabled*" if is_enabled else status(f"{model}.{name}", scheme)


def classes(source: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each class of a file that may be an attention, and its code without docstrings and comments."""
    for part in re.split(r"^(?=class )", source, flags=re.MULTILINE)[1:]:
        name = re.findall(r"\w+", part[:200])[1]
        if NAME.search(name):
            head, _, rest = DOCSTRING_OR_COMMENT.sub("", part).partition("\n")
            body = re.split(r"^(?=\w|@)", rest, maxsplit=1, flags=re.MULTILINE)[0]
            yield name, f"{head}\n{body}"


def scheme_of(code: str) -> str | None:
    """Return the heading of the scheme of a class, "" if it is unknown, or None if the class has no relative term."""
    if HOLDS_ATTENTION.search(code) or "def forward" not in code:
        return None
    return next((scheme for pattern, scheme in SCHEMES if re.search(pattern, code)), None)


def status(class_name: str, scheme: str) -> str:
    """Return the status of a class that is not enabled, as Markdown."""
    others = (value for beginning, value in OTHERS.items() if class_name.startswith(beginning))
    scheme, reason = next(others, (scheme, ""))
    if reason:
        return f"*not expressible*: {reason}"
    if not scheme:
        return "*not examined*"
    return f"*expressible*, see [{scheme}](../family.md#{scheme.lower().replace(' ', '-')})"


def page() -> str:
    """Return the text of docs/reference/coverage.md."""
    rows = list(coverage())
    enabled, expressible, others = (
        sum(word in row[2] for row in rows) for word in ("*enabled*", "*expressible*", "*not expressible*")
    )
    counts = f"{enabled} are enabled by `enable()`, {expressible} are expressible as a call of the operator"
    return f"""# Coverage of transformers

Classes of transformers {transformers.__version__} with a relative term in attention, written by
`python -m tools.coverage`. Of {len(rows)}, {counts}, and {others} are not.
Of T5 and related models, only the encoders are enabled.

| model | class | status |
|---|---|---|
""" + "".join(f"| {model} | `{name}` | {text} |\n" for model, name, text in rows)


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()

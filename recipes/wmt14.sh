#!/bin/sh
# Download WMT14 English-German and newstest, clean the text, and write what recipes/wmt14-en-de-*.yaml name. It needs
# `pip install datasets` and relattn-mt[train], and has not been run here, without a network.
set -eu
mkdir -p data/wmt14-en-de
python - <<'END'
from datasets import load_dataset

with open("data/en", "w") as src, open("data/de", "w") as tgt:
    for row in load_dataset("wmt/wmt14", "de-en", split="train"):
        for language, file in (("en", src), ("de", tgt)):
            print(" ".join(row["translation"][language].split()), file=file)
END
for language in en de; do
    side=$([ $language = en ] && echo src || echo ref)
    sacrebleu -t wmt13 -l en-de --echo $side | gzip > data/wmt14-en-de/newstest2013.$language.gz
    sacrebleu -t wmt14/full -l en-de --echo $side | gzip > data/wmt14-en-de/newstest2014.$language.gz
done
relattn-mt prepare --src data/en --tgt data/de --src_lang en --tgt_lang de --out data/prepared \
    --exclude data/wmt14-en-de/newstest201*.gz
mv data/prepared/* data/wmt14-en-de

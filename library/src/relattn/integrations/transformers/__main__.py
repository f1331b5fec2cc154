"""Print the classes of the installed transformers that `enable()` supports."""

from relattn.integrations.transformers.families import load_families

if __name__ == "__main__":
    for path in sorted({patch.class_path for family in load_families() for patch in family.patches}):
        print(path)

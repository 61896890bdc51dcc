"""Choose the characters of `glyphs` anew and write them where the package reads them."""

from zofc.data.glyph_alphabet import FILE, alphabet

if __name__ == "__main__":
    FILE.write_text("\n".join(alphabet()) + "\n", encoding="utf-8")
    print(f"wrote {FILE}")

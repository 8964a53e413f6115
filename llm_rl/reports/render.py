# SPDX-License-Identifier: Apache-2.0
"""Blocks of a page as Markdown, and as an HTML file that needs no other file and no network.

A block is ("title", text), ("heading", text), ("text", text), ("list", [text, ...]), ("table", [row, ...]) whose first row
holds the heads, or ("picture", file name, caption). Texts are plain but for `code` in backticks.
"""

import base64
import html
import re

STYLE = """
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.55 system-ui, sans-serif; color: #1c1c1c;
  background: #fff; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.92rem; margin: 0.8rem 0; }
td, th { border: 1px solid #ddd; padding: 0.25rem 0.6rem; text-align: right; }
td:first-child, th:first-child { text-align: left; } th { background: #f4f4f4; }
figure { margin: 1rem 0; } img { max-width: 100%; } figcaption { color: #555; font-size: 0.92rem; }
code { background: #f4f4f4; padding: 0 0.2em; overflow-wrap: anywhere; }
"""


def markdown(blocks):
    """The text of a Markdown file."""
    return "\n\n".join(_markdown(*block) for block in blocks) + "\n"


def _markdown(kind, content, *rest):
    if kind == "list":
        return "\n".join(f"- {text}" for text in content)
    if kind == "table":
        heads, *rows = [[str(cell).replace("|", "\\|") for cell in row] for row in content]
        lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    if kind == "picture":
        return f"![{rest[0]}]({content})"
    return {"title": "# ", "heading": "## ", "text": ""}[kind] + content


def page(blocks, language, pictures, links):
    """The text of an HTML file; `pictures`: {file name: bytes of a PNG}; `links`: {text: file name} for its first line."""
    title = next(block[1] for block in blocks if block[0] == "title")
    body = "\n".join(_html(pictures, *block) for block in blocks)
    nav = " · ".join(f'<a href="{html.escape(path)}">{html.escape(text)}</a>' for text, path in links.items())
    return (
        f'<!DOCTYPE html>\n<html lang="{language}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<p>{nav}</p>\n{body}\n</body>\n</html>\n"
    )


def _html(pictures, kind, content, *rest):
    if kind == "list":
        return "<ul>\n" + "".join(f"<li>{_inline(text)}</li>\n" for text in content) + "</ul>"
    if kind == "table":
        rows = [
            "<tr>" + "".join(f"<{cell}>{_inline(str(text))}</{cell}>" for text in row) + "</tr>"
            for row, cell in zip(content, ["th", *["td"] * (len(content) - 1)], strict=True)
        ]
        return '<div class="wide"><table>\n' + "\n".join(rows) + "\n</table></div>"
    if kind == "picture":
        data = base64.b64encode(pictures[content]).decode()
        image = f'<img alt="{html.escape(rest[0])}" src="data:image/png;base64,{data}">'
        return f"<figure>{image}<figcaption>{_inline(rest[0])}</figcaption></figure>"
    tag = {"title": "h1", "heading": "h2", "text": "p"}[kind]
    return f"<{tag}>{_inline(content)}</{tag}>"


def _inline(text):
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))

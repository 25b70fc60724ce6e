"""Makes the pictures of the README: the real application on the real starter model.

python scripts/screenshots.py MODEL [FOLDER]
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

SIZE = (120, 36)
QUESTION = """Rewrite this function with a with-block and change nothing else:

```python
def load(path):
    f = open(path)
    rows = [line.split(",") for line in f]
    f.close()
    return rows


def save(path, rows):
    f = open(path, "w")
    for row in rows:
        f.write(",".join(row))
    f.close()
```"""


def main() -> None:
    """Run the application in a home of its own and save what it paints."""
    model = Path(sys.argv[1]).resolve()
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else "docs").resolve()
    with tempfile.TemporaryDirectory() as home:
        for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
            os.environ[f"XDG_{kind}_HOME"] = str(Path(home) / kind)
        config = Path(home) / "CONFIG" / "kvchat" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text("[chat]\ntemperature = 0.0\nmax_tokens = 220\n")
        asyncio.run(paint(model, folder))


async def paint(model: Path, folder: Path) -> None:
    """Ask the question, wait for the reply, and paint chat and planner."""
    from app.application import KvchatApp, every_binding_id
    from app.startup import Request, prepare

    opened = prepare(Request(model=str(model)), every_binding_id)
    app = KvchatApp(
        opened.controller,
        opened.services,
        model=opened.model,
        symbols=opened.settings.ui.graph_symbols,
        theme=opened.settings.ui.theme,
    )
    folder.mkdir(exist_ok=True)
    async with app.run_test(size=SIZE) as pilot:
        while not opened.controller.client.is_alive:
            await pilot.pause(0.2)
        await pilot.pause(0.5)
        app.screen.query_one("#composer").load_text(QUESTION)
        await pilot.press("enter")
        await pilot.pause(1.0)
        while opened.controller.client.is_busy:
            await pilot.pause(0.2)
        await pilot.pause(1.5)
        app.save_screenshot("chat.svg", str(folder))
        await pilot.press("f2")
        await pilot.pause(2.0)
        app.save_screenshot("planner.svg", str(folder))
    opened.close()


if __name__ == "__main__":
    main()

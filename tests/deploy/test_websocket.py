"""A page in Chromium infers over NATS's WebSocket, and its user may do nothing else."""

from __future__ import annotations

import asyncio
import functools
import http.server
import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Page, async_playwright
from support.interfaces import interfaces_stay
from support.meshes import READY, mesh_of, split_digits
from support.ports import free_port
from support.waiting import GENEROUS

from nodes.up.embedded_server import find_binary

FOLDER = Path(__file__).parents[2] / "deploy" / "websocket"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FETCH_WITHIN = 60.0  # seconds
REFUSED = """async ([server, subject]) => {
  const { connect } = await import("./nats.js");
  const mesh = await connect({ servers: server, user: "page", pass: "pages-secret" });
  const told = (async () => {
    for await (const status of mesh.status()) if (status.type === "error") return status.data;
  })();
  mesh.publish(subject);
  await mesh.flush();
  const data = await told;
  await mesh.close();
  return String(data);
}"""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.skipif(CHROMIUM is None, reason="no browser: apt-get install --yes chromium"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="no npm, which fetches nats.ws"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's folder with `nats.js`, as the page of the folder says to make it."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(FOLDER / "index.html", folder)
    command = ["npm", "pack", "--silent", "nats.ws@1"]
    environment = os.environ | {"npm_config_cache": str(folder / "cache")}
    try:
        packed = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, timeout=FETCH_WITHIN
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not fetch nats.ws within {FETCH_WITHIN:g} s")
    if packed.returncode:
        pytest.skip(f"npm cannot fetch nats.ws: {packed.stderr.decode()[-200:]}")
    with tarfile.open(next(folder.glob("nats.ws-1.*.tgz"))) as package:
        package.extractall(folder, filter="data")
    shutil.copy(folder / "package/esm/nats.js", folder)
    return folder


@pytest.fixture
def origin(site: Path) -> Iterator[str]:
    """The page, served."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@asynccontextmanager
async def server_of(origin: str, folder: Path) -> AsyncIterator[tuple[str, str]]:
    """A nats-server with the folder's configuration on free ports; its two addresses."""
    port, browsers = free_port(), free_port()
    text = (FOLDER / "nats-server.conf").read_text()
    for old, new in (
        ("port: 4222", f'host: "127.0.0.1"\nport: {port}'),
        ("port: 8080", f"port: {browsers}"),
        ("http://127.0.0.1:8090", origin),
        ("./nats-store", str(folder / "store")),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "nats-server.conf").write_text(text)
    secrets = {"SWARM_NODE": "nodes-secret", "SWARM_PAGE": "pages-secret"}
    log = folder / "server.log"
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            find_binary(),
            "-c",
            str(folder / "nats-server.conf"),
            env=os.environ | secrets,
            stderr=written,
        )
    try:
        async with asyncio.timeout(GENEROUS):
            while not await answers(port):
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.05)
        yield f"nats://node:nodes-secret@127.0.0.1:{port}", f"ws://127.0.0.1:{browsers}"
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(GENEROUS):
            await process.wait()


async def answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def browsing() -> AsyncIterator[Page]:
    with interfaces_stay():
        async with async_playwright() as playwright:
            started = await playwright.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
            )
            yield await started.new_page()
            await started.close()


@pytest.mark.asyncio
async def test_a_page_infers_and_its_user_may_do_nothing_else(origin: str, tmp_path: Path) -> None:
    async with (
        server_of(origin, tmp_path) as (url, browsers),
        mesh_of(split_digits(stages=1), "fallback", url=url, name="default"),
        browsing() as page,
    ):
        await page.goto(f"{origin}/?server={browsers}")
        await page.fill("#password", "pages-secret")
        await page.click("button")
        await page.wait_for_selector("#said:not(:empty)", timeout=READY * 1000)
        said = await page.inner_text("#said")
        assert len([float(number) for number in said.split()]) == 10, said
        for subject in ("swarm.default.status.x", "swarm.default.infer.other", "$JS.API.INFO"):
            assert "PERMISSIONS" in (await page.evaluate(REFUSED, [browsers, subject])).upper()
        await page.fill("#password", "wrong")
        await page.click("button")
        await page.wait_for_function(
            "document.getElementById('said').textContent.toLowerCase().includes('authorization')"
        )

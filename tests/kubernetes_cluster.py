"""An API server of Kubernetes for `make test-long`, whose pods are processes of this machine.

Spark's own scheduler for Kubernetes speaks to it. It has what that asks for: pods, config maps, services,
lists and watches by label. A pod is started as Spark's image would do it, with the variables, secrets and
config maps that its definition names; folders that are mounted into it lie in a folder of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyspark
import yaml
from aiohttp import WSMsgType, web

_SPARK_HOME: Final = Path(pyspark.__file__).parent
_BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OF_EXECUTORS: Final = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_RUNNING: Final = {
    "phase": "Running",
    "podIP": "127.0.0.1",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "spark", "ready": True, "state": {"running": {}}}],
}

Object = dict[str, Any]


@dataclass
class Kubernetes:
    """A running cluster.

    Attributes:
        folder: of each pod a folder, with its output.
        secrets: values by the name of a secret and its key.
        environment: the variables of the image, which are all that a pod begins with.
    """

    folder: Path
    secrets: Mapping[str, Mapping[str, str]]
    environment: Mapping[str, str]
    address: str = ""
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    watchers: list[tuple[str, Mapping[str, str], asyncio.Queue[Object]]] = field(default_factory=list)

    def output(self, role: str) -> str:
        """What the pods of a role, ``driver`` or ``executor``, have written, errors included."""
        return "".join((self.folder / name / "log").read_text() for name in self.pods(role))

    def pods(self, role: str) -> list[str]:
        """The names of all pods of a role that there have been."""
        return sorted(
            path.parent.name
            for path in self.folder.glob("*/pod.json")
            if json.loads(path.read_text())["metadata"]["labels"]["spark-role"] == role
        )

    def kill(self, pod: str) -> None:
        """Kill the processes of a pod, as when its machine dies."""
        with suppress(ProcessLookupError):
            os.killpg(self.processes[pod].pid, signal.SIGKILL)

    def routes(self) -> web.Application:
        """What the API server answers."""
        app = web.Application()
        of_kind = "/{group:apis?/.+}/namespaces/default/{kind}"
        app.router.add_get(of_kind, self._list)
        app.router.add_post(of_kind, self._create)
        app.router.add_delete(of_kind, self._delete_all)
        app.router.add_get(of_kind + "/{name}", self._get)
        app.router.add_delete(of_kind + "/{name}", self._delete)
        for method in ("PATCH", "PUT"):
            app.router.add_route(method, of_kind + "/{name}", self._put)
        return app

    async def _list(self, request: web.Request) -> web.StreamResponse:
        kind, labels = request.match_info["kind"], _selected(request)
        if request.query.get("watch") == "true":
            return await self._watch(request, kind, labels)
        items = [one for (k, _), one in self.objects.items() if k == kind and _fits(one, labels)]
        return web.json_response(
            {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}
        )

    async def _watch(
        self, request: web.Request, kind: str, labels: Mapping[str, str]
    ) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        changes: asyncio.Queue[Object] = asyncio.Queue()
        self.watchers.append((kind, labels, changes))

        async def send() -> None:
            while True:
                await socket.send_json(await changes.get())

        sending = asyncio.create_task(send())
        async for message in socket:
            if message.type in (WSMsgType.CLOSE, WSMsgType.ERROR):
                break
        sending.cancel()
        self.watchers.remove((kind, labels, changes))
        return socket

    async def _create(self, request: web.Request) -> web.Response:
        kind, made = request.match_info["kind"], await request.json()
        meta = made["metadata"]
        meta.setdefault("name", meta.get("generateName", "") + uuid4().hex[:8])
        return web.json_response(self._keep(kind, made), status=201)

    async def _put(self, request: web.Request) -> web.Response:
        kind, name = request.match_info["kind"], request.match_info["name"]
        given = yaml.safe_load(await request.text())
        known = self.objects.get((kind, name))
        if known is None and request.method == "PATCH" and "metadata" not in given:
            return _missing(name)
        return web.json_response(self._keep(kind, {**(known or {}), **given}))

    def _keep(self, kind: str, made: Object) -> Object:
        """Remember an object; a new pod is started."""
        name = made["metadata"]["name"]
        is_new = (kind, name) not in self.objects
        made["metadata"] = {
            "uid": str(uuid4()),
            "namespace": "default",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **made["metadata"],
            "resourceVersion": uuid4().hex,
        }
        self.objects[kind, name] = made
        if kind == "pods" and is_new:
            made["status"] = {"phase": "Pending"}
            asyncio.get_running_loop().create_task(self._run(made))
        self._tell(kind, "ADDED" if is_new else "MODIFIED", made)
        return made

    def _tell(self, kind: str, what: str, changed: Object) -> None:
        for watched, labels, changes in self.watchers:
            if watched == kind and _fits(changed, labels):
                changes.put_nowait({"type": what, "object": json.loads(json.dumps(changed))})

    async def _get(self, request: web.Request) -> web.Response:
        found = self.objects.get((request.match_info["kind"], request.match_info["name"]))
        return _missing(request.match_info["name"]) if found is None else web.json_response(found)

    async def _delete(self, request: web.Request) -> web.Response:
        return web.json_response(self._remove(request.match_info["kind"], request.match_info["name"]))

    async def _delete_all(self, request: web.Request) -> web.Response:
        kind, labels = request.match_info["kind"], _selected(request)
        for name in [n for (k, n), one in self.objects.items() if k == kind and _fits(one, labels)]:
            self._remove(kind, name)
        return web.json_response({"kind": "Status", "status": "Success"})

    def _remove(self, kind: str, name: str) -> Object:
        gone = self.objects.pop((kind, name), None)
        if gone is not None and kind == "pods" and name in self.processes:
            self.kill(name)
        if gone is not None:
            self._tell(kind, "DELETED", gone)
        return {"kind": "Status", "status": "Success"}

    async def _run(self, pod: Object) -> None:
        """Start a pod once its config maps are there, and say how it goes."""
        name = pod["metadata"]["name"]
        maps = [v["configMap"]["name"] for v in pod["spec"].get("volumes", ()) if "configMap" in v]
        while not all(("configmaps", one) in self.objects for one in maps):
            await asyncio.sleep(0.05)
        process = self.processes[name] = self._started(pod)
        self._keep("pods", {**pod, "status": _RUNNING})
        code = await asyncio.to_thread(process.wait)
        if ("pods", name) in self.objects:
            ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}
            state = [{"name": "spark", "ready": False, "state": {"terminated": ended}}]
            phase = "Succeeded" if code == 0 else "Failed"
            self._keep("pods", {**pod, "status": {"phase": phase, "containerStatuses": state}})

    def _started(self, pod: Object) -> subprocess.Popen[bytes]:
        folder = self.folder / pod["metadata"]["name"]
        folder.mkdir()
        (folder / "pod.json").write_text(json.dumps(pod))
        (container,) = pod["spec"]["containers"]
        mounts = {one["mountPath"]: str(folder / one["name"]) for one in container.get("volumeMounts", ())}
        self._mount(pod, folder)

        def inside(value: str) -> str:
            """A value with the folders that stand for those of the pod."""
            for path, own in mounts.items():
                if value == path or value.startswith(path + "/"):
                    return own + value.removeprefix(path)
            return value

        given = {one["name"]: inside(self._value(one)) for one in container["env"]}
        environment = {**self.environment, **given}
        role, *arguments = map(inside, container["args"])
        return subprocess.Popen(
            _of_driver(arguments) if role == "driver" else _of_executor(environment),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=(folder / "log").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _mount(self, pod: Object, folder: Path) -> None:
        """The volumes of a pod: empty folders, and files of config maps, where a service is this machine."""
        for volume in pod["spec"].get("volumes", ()):
            (folder / volume["name"]).mkdir()
            for name, text in self._files(volume).items():
                for kind, service in self.objects:
                    text = text.replace(f"{service}.default.svc", "127.0.0.1") if kind == "services" else text
                (folder / volume["name"] / name).write_text(text)

    def _files(self, volume: Object) -> Mapping[str, str]:
        if "configMap" not in volume:
            return {}
        return dict(self.objects["configmaps", volume["configMap"]["name"]]["data"])

    def _value(self, variable: Object) -> str:
        match variable:
            case {"valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}:
                return self.secrets[secret][key]
            case {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}:
                return "127.0.0.1"
        return str(variable.get("value", ""))


def _of_driver(arguments: list[str]) -> list[str]:
    submit = [str(_SPARK_HOME / "bin/spark-submit"), "--deploy-mode", "client"]
    return [*submit, "--conf", "spark.driver.bindAddress=127.0.0.1", *arguments]


def _of_executor(environment: Mapping[str, str]) -> list[str]:
    java = os.path.join(os.environ["JAVA_HOME"], "bin/java")
    options = [environment[name] for name in sorted(environment) if name.startswith("SPARK_JAVA_OPT_")]
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    named = [part for flag, name in _OF_EXECUTORS.items() for part in (flag, environment[name])]
    classes = f"{_SPARK_HOME}/jars/*"
    return [java, *options, f"-Xms{memory}", f"-Xmx{memory}", "-cp", classes, _BACKEND, *named]


def _selected(request: web.Request) -> dict[str, str]:
    """The labels, and the name as ``metadata.name``, by which a request selects; ``a!`` must have another."""
    selectors = [request.query.get(name, "") for name in ("labelSelector", "fieldSelector")]
    return dict(part.split("=", 1) for part in ",".join(selectors).split(",") if "=" in part)


def _fits(one: Object, labels: Mapping[str, str]) -> bool:
    own = {**one["metadata"].get("labels", {}), "metadata.name": one["metadata"]["name"]}
    return all(
        own.get(name.removesuffix("!")) != value if name.endswith("!") else own.get(name) == value
        for name, value in labels.items()
    )


def _missing(name: str) -> web.Response:
    status = {"kind": "Status", "status": "Failure", "reason": "NotFound", "message": name, "code": 404}
    return web.json_response(status, status=404)


@contextmanager
def kubernetes(
    folder: Path, secrets: Mapping[str, Mapping[str, str]], environment: Mapping[str, str]
) -> Iterator[Kubernetes]:
    """A cluster for the length of the block."""
    cluster = Kubernetes(folder, secrets, environment)
    loop = asyncio.new_event_loop()

    async def serve() -> int:
        runner = web.AppRunner(cluster.routes())
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return int(runner.addresses[0][1])

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    port = asyncio.run_coroutine_threadsafe(serve(), loop).result()
    cluster.address = f"http://127.0.0.1:{port}"
    try:
        yield cluster
    finally:
        for name in list(cluster.processes):
            cluster.kill(name)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

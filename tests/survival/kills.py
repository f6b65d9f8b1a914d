"""What a kill may leave of a run folder: its state at every file event."""

import shutil
import sys
from contextlib import contextmanager

EVENTS = {"open", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir", "os.truncate"}
watched = None  # the folder, and a function to call before each of its events


def hook(event, arguments):
    global watched
    if watched and event in EVENTS and str(arguments[0]).startswith(str(watched[0])):
        (folder, call), watched = watched, None  # the call causes events too
        try:
            call()
        finally:
            watched = folder, call


sys.addaudithook(hook)  # stays until Python exits


@contextmanager
def at_events_of(folder, call):
    """Call a function before every file event in a folder or its subfolders."""
    global watched
    watched = folder, call
    try:
        yield
    finally:
        watched = None


def snapshot(folder):
    """Every file by its path, and every folder."""
    paths = sorted(folder.rglob("*")) if folder.exists() else []
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def restore(folder, state):
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in state.items():
        if content is None:
            (folder / name).mkdir(parents=True)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


@contextmanager
def states_during(folder):
    """All states of a folder while the block runs, including each written file half written."""
    states = [{}]

    def look():
        if (state := snapshot(folder)) != (before := states[-1]):
            for name in state if before.keys() <= state.keys() else ():  # no file was renamed
                old, new = before.get(name) or b"", state[name] or b""
                if len(new) > len(old) and new.startswith(old):
                    states.append(before | {name: new[: (len(old) + len(new)) // 2]})
            states.append(state)

    with at_events_of(folder, look):
        yield states
    look()

"""Lists, pages, labels."""

from openshell import Page, Pager, SandboxError, WorkspaceClient, WorkspaceRef
from openshell._proto import openshell_pb2 as pb

from harness import Group, W, contains, equal, raised, refused
from shared import client, once

group = Group()
MADE = 12
LABELS = {"list": "yes"}
SELECTOR = "list=yes"


@once
def made():
    """Sandboxes whose command has ended: they cost nothing while they are listed."""
    spec = pb.SandboxSpec(command=["true"])
    from openshell import SandboxClient

    with SandboxClient.from_active_cluster() as own:
        return [
            own.create(name=f"listed-{n:02}", labels={**LABELS, "odd": str(n % 2)}, spec=spec, **W) for n in range(MADE)
        ]


def ids(refs):
    return [one.id for one in refs]


@group.check("pages of every size give each sandbox once, in the order of creation")
def _():
    expected = ids(made())
    for size in (1, 5, MADE, 0, 5000):
        pages = list(client().list(page_size=size, label_selector=SELECTOR, **W))
        equal([one.id for page in pages for one in page.items], expected)
        limit = size or 100
        assert all(len(page.items) <= limit for page in pages)
        equal(pages[-1].next_page_token, "")
        tokens = [page.next_page_token for page in pages[:-1]]
        equal(len(set(tokens)), len(tokens))
        # The SDK keeps at most 1 MiB of tokens: short ones allow its 10,000 pages.
        assert all(0 < len(token) <= 1024 * 1024 // 10_000 * 4 for token in tokens), [len(one) for one in tokens]


@group.check("list_all, list_ids, over all workspaces as well, say the same")
def _():
    expected = ids(made())
    equal(ids(client().list_all(page_size=5, label_selector=SELECTOR, **W)), expected)
    equal(client().list_ids(page_size=5, label_selector=SELECTOR, **W), expected)
    equal(client().list_ids_for_all_workspaces(page_size=5, label_selector=SELECTOR), expected)
    equal(ids(client().list_all_for_all_workspaces(page_size=5, label_selector=SELECTOR)), expected)
    equal(ids(client().list_for_all_workspaces(label_selector=SELECTOR).all()), expected)
    assert set(expected) <= set(client().list_ids(**W))


@group.check("labels: several are all required, an unknown one gives nothing")
def _():
    odd = [one.id for one in made() if one.labels["odd"] == "1"]
    equal(client().list_ids(label_selector=f"{SELECTOR},odd=1", **W), odd)
    equal(client().list_ids(label_selector="list=no", **W), [])


@group.check("a traversal is taken up again from its token, and the page size may change on the way")
def _():
    expected = ids(made())
    first = next(client().list(page_size=5, label_selector=SELECTOR, **W))
    rest = client().list_all(page_size=2, page_token=first.next_page_token, label_selector=SELECTOR, **W)
    equal(ids(first.items) + ids(rest), expected)


@group.check("what is made or deleted on the way neither repeats nor hides a sandbox")
def _():
    made()
    selector = "moving=yes"
    spec = pb.SandboxSpec(command=["true"])
    first = [client().create(name=f"moving-{n}", labels={"moving": "yes"}, spec=spec, **W) for n in range(4)]
    pager = client().list(page_size=1, label_selector=selector, **W)
    seen = [next(pager).items[0].name]
    client().delete(first[0].name, **W)
    client().delete(first[2].name, **W)
    client().create(name="moving-late", labels={"moving": "yes"}, spec=spec, **W)
    seen += [one.name for page in pager for one in page.items]
    equal(seen, ["moving-0", "moving-1", "moving-3", "moving-late"])
    for name in seen[1:]:
        client().delete(name, **W)


@group.check("a token is for its own request: another selector, scope or text is INVALID_ARGUMENT")
def _():
    made()
    token = next(client().list(page_size=5, label_selector=SELECTOR, **W)).next_page_token
    altered = token[:-1] + ("A" if token[-1] != "A" else "B")
    for attempt in (
        client().list(page_token=token, label_selector="list=no", **W),
        client().list_for_all_workspaces(page_token=token, label_selector=SELECTOR),
        client().list(page_token="hä", **W),
        client().list(page_token=altered, label_selector=SELECTOR, **W),
    ):
        error = refused("INVALID_ARGUMENT", next, attempt)
        equal([one.field for one in error.field_violations], ["page_token"])


@group.check("a bad page size and a bad selector name their field")
def _():
    error = refused("INVALID_ARGUMENT", client().list_all, page_size=-1, **W)
    equal([one.field for one in error.field_violations], ["page_size"])
    error = refused("INVALID_ARGUMENT", client().list_all, label_selector="team in (a)", **W)
    equal([one.field for one in error.field_violations], ["label_selector"])
    equal(refused("NOT_FOUND", client().list_all, workspace="another").details(), "workspace not found")


@group.check("the pager's guard: a token that comes back raises; a page that failed is fetched again")
def _():
    pager = Pager(lambda token: Page(items=[token], next_page_token="a"))
    equal([next(pager).items, raised(SandboxError, pager.all).args[0][:15]], [[""], "pager received "])
    pager = client().list(page_size=-1, **W)
    for _attempt in range(2):
        refused("INVALID_ARGUMENT", next, pager)


@group.check("workspaces: the default one is there, listed and gettable")
def _():
    workspaces = WorkspaceClient.from_sandbox_client(client())
    default = WorkspaceRef(name="default", phase="WORKSPACE_PHASE_ACTIVE", labels={})
    equal(workspaces.get("default"), default)
    equal(workspaces.list_all(page_size=1), [default])
    equal(next(workspaces.list()).items, [default])
    equal(refused("NOT_FOUND", workspaces.get, "another").details(), "workspace not found")


@group.check("sandboxes that are larger than a message together come in smaller pages")
def _():
    # 16 times 250 KB, where the SDK takes 4 MiB.
    spec = pb.SandboxSpec(command=["true"], environment={f"V{n}": "x" * 8_000 for n in range(32)})
    large = [client().create(labels={"large": "yes"}, spec=spec, **W) for _ in range(17)]
    pages = list(client().list(page_size=1000, label_selector="large=yes", **W))
    equal([one.id for page in pages for one in page.items], ids(large))
    assert len(pages) > 1
    for one in large:
        client().delete(one.name, **W)


@group.check("everything listed is deleted")
def _():
    for one in made():
        equal(client().delete(one.name, **W).sandbox_id, one.id)
    equal(client().list_ids(label_selector=SELECTOR, **W), [])

// Walking through the tree with the keys: across to the parent and the branches, up and down among the siblings.

/** The node that a key leads to from another, or from nowhere; undefined where the key leads nowhere. */
export function walk(tree, node, key) {
  if (!node) return key.startsWith("Arrow") || key === "Home" ? tree.order[0] : undefined;
  switch (key) {
    case "ArrowRight":
      return node.children[0];
    case "ArrowLeft":
      return tree.parentOf(node);
    case "ArrowDown":
      return beside(tree, node, 1);
    case "ArrowUp":
      return beside(tree, node, -1);
    case "Home":
      return tree.order[0];
    case "End":
      return tree.order[tree.order.length - 1];
    default:
      return undefined;
  }
}

/** The sibling above or below; at the end of the siblings the nearest one of an ancestor's, or of the next namespace. */
function beside(tree, node, step) {
  for (let each = node; each; each = tree.parentOf(each)) {
    const siblings = tree.siblingsOf(each);
    const next = siblings[siblings.indexOf(each) + step];
    if (next) return next;
    if (!tree.parentOf(each)) {
      const index = tree.namespaces.findIndex((space) => space.name === each.namespace) + step;
      const children = tree.namespaces[index]?.children ?? [];
      return step > 0 ? children[0] : children[children.length - 1];
    }
  }
  return undefined;
}

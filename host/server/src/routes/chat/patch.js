// JSON Patch (RFC 6902).

/** A value with a JSON Patch (RFC 6902) applied; as it was where the patch does not fit it. */
export function patched(value, patch) {
  try {
    return patch.reduce(operate, structuredClone(value));
  } catch {
    return value;
  }
}

function operate(root, { op, path, from, value }) {
  switch (op) {
    case 'add':
      return put(root, path, value, 'insert');
    case 'replace':
      at(root, path);
      return put(root, path, value, 'set');
    case 'remove':
      return take(root, path);
    case 'copy':
      return put(root, path, structuredClone(at(root, from)), 'insert');
    case 'move': {
      const moved = at(root, from);
      return put(take(root, from), path, moved, 'insert');
    }
    case 'test':
      if (JSON.stringify(at(root, path)) !== JSON.stringify(value)) throw new Error('another value');
      return root;
    default:
      return root;
  }
}

const keys = (path) => path.split('/').slice(1).map((key) => key.replaceAll('~1', '/').replaceAll('~0', '~'));

function step(value, key) {
  if (value === null || typeof value !== 'object' || !Object.hasOwn(value, key)) throw new Error('no such place');
  return value[key];
}

const at = (root, path) => keys(path).reduce(step, root);

/** The thing that holds what a path names, and its key there. */
function holder(root, path) {
  const all = keys(path);
  const key = all.pop();
  return [all.reduce(step, root), key];
}

function put(root, path, value, how) {
  if (path === '') return value;
  const [parent, key] = holder(root, path);
  if (Array.isArray(parent)) {
    const index = key === '-' ? parent.length : Number(key);
    if (!(Number.isInteger(index) && index >= 0 && index <= parent.length)) throw new Error('no such place');
    parent.splice(index, how === 'insert' ? 0 : 1, value);
  } else {
    // Not an assignment: the key may be `__proto__`.
    Object.defineProperty(parent, key, { value, enumerable: true, configurable: true, writable: true });
  }
  return root;
}

function take(root, path) {
  at(root, path);
  const [parent, key] = holder(root, path);
  if (Array.isArray(parent)) parent.splice(Number(key), 1);
  else delete parent[key];
  return root;
}

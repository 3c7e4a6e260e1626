# Source it: `. tools/env.sh` puts the Node that the launcher uses and the packages' tools on the PATH.
root=$(git rev-parse --show-toplevel)
for folder in "$root"/tools/node/node_modules/node-linux-*/bin; do [ -x "$folder/node" ] && PATH=$folder:$PATH; done
PATH=$root/node_modules/.bin:$PATH
export PATH

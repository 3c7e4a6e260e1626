# Source it: `. tools/env.sh` puts the Node that the launcher uses and the packages' tools on the PATH.
# npm keeps reading the machine's npmrc, for which it would look elsewhere under another Node than its own.
npm_config_globalconfig=${npm_config_globalconfig:-$(npm config get globalconfig)}
root=$(git rev-parse --show-toplevel)
for folder in "$root"/tools/node/node_modules/node-linux-*/bin; do [ -x "$folder/node" ] && PATH=$folder:$PATH; done
PATH=$root/node_modules/.bin:$PATH
export npm_config_globalconfig PATH

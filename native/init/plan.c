/* Decodes the launch plan. The layout is that of packages/boundary/src/local/plan-encode.ts, field by field. */
#include "common.h"

static void get_ranges(struct reader *r, struct range *map, uint32_t *count) {
  *count = get_count(r, RANGES_MAX);
  for (uint32_t i = 0; i < *count; i++) {
    map[i].inside = get_u32(r);
    map[i].outside = get_u32(r);
    map[i].count = get_u32(r);
  }
}

static void get_step(struct reader *r, struct step *s) {
  s->kind = get_u8(r);
  s->target = get_string(r);
  s->tree = -1;
  if (s->target[0] != '/') r->bad = true;
  switch (s->kind) {
    case STEP_TMPFS:
      s->mode = get_u32(r);
      s->size = get_u64(r);
      s->noexec = get_u8(r);
      s->agent_owned = get_u8(r);
      return;
    case STEP_DIRECTORY:
      s->mode = get_u32(r);
      s->agent_owned = get_u8(r);
      return;
    case STEP_FILE:
      s->mode = get_u32(r);
      s->content = get_bytes(r);
      return;
    case STEP_SYMLINK:
      s->source = get_string(r);
      return;
    case STEP_BIND:
      s->source = get_string(r);
      s->read_only = get_u8(r);
      s->recursive = get_u8(r);
      s->optional = get_u8(r);
      s->noexec = get_u8(r);
      s->device = get_u8(r);
      return;
    case STEP_VOLUME:
      s->source = get_string(r);
      s->read_only = get_u8(r);
      s->idmap = get_u8(r);
      if (s->idmap > IDMAP_SANDBOX) r->bad = true;
      s->host_uid = get_u32(r);
      s->host_gid = get_u32(r);
      return;
    case STEP_OVERLAY:
      s->source = get_string(r);
      return;
    case STEP_PROC:
    case STEP_DEVPTS:
    case STEP_SEAL:
      return;
  }
  r->bad = true;
}

static void get_network(struct reader *r, struct plan *p) {
  p->mode = get_u8(r);
  p->routes = get_count(r, ROUTES_MAX);
  for (uint32_t i = 0; i < p->routes; i++) {
    p->route[i].optional = get_u8(r);
    p->route[i].message = get_bytes(r);
  }
  p->sk_program = get_bytes(r);
  p->fixups = get_count(r, sizeof p->fixup / sizeof *p->fixup);
  for (uint32_t i = 0; i < p->fixups; i++) {
    p->fixup[i] = get_u32(r);
    if ((uint64_t)p->fixup[i] * 8 + 8 > p->sk_program.size) r->bad = true;
  }
  p->nft_acks = get_u32(r);
  p->nft = get_bytes(r);
  p->ports = get_count(r, PORTS_MAX);
  for (uint32_t i = 0; i < p->ports; i++) p->port[i] = get_u16(r);
  if (p->mode < CAPTURE_SK_LOOKUP || p->mode > CAPTURE_PORTS) r->bad = true;
}

bool decode_plan(const uint8_t *data, size_t size, struct plan *p) {
  struct reader r = {data, data + size, false};
  if (get_u32(&r) != 0x5048534fU /* "OSHP" */ || get_u32(&r) != 1) return false;
  p->sandbox_id = get_string(&r);
  p->generation = get_u64(&r);
  struct bytes nonce = get_bytes(&r);
  if (nonce.size != NONCE_SIZE) return false;
  p->nonce = nonce.data;
  p->control_folder = get_string(&r);
  p->control_socket = get_string(&r);
  p->uid = get_u32(&r);
  p->gid = get_u32(&r);
  get_ranges(&r, p->uid_map, &p->uid_ranges);
  get_ranges(&r, p->gid_map, &p->gid_ranges);
  p->deny_setgroups = get_u8(&r);
  p->hostname = get_string(&r);
  p->cgroups = get_count(&r, CGROUPS_MAX);
  for (uint32_t i = 0; i < p->cgroups; i++) p->cgroup[i] = get_string(&r);
  p->freezer = get_u8(&r);
  p->freezer_folder = get_string(&r);
  p->steps = get_count(&r, STEPS_MAX);
  for (uint32_t i = 0; i < p->steps && !r.bad; i++) get_step(&r, &p->step[i]);
  get_network(&r, p);
  p->orphan_limit_ms = get_u64(&r);
  /* The agent is never uid 0, and the root is always a tmpfs of our own. */
  return !r.bad && r.at == r.end && p->uid != 0 && p->gid != 0 && p->freezer <= FREEZER_V2 && p->steps > 0 &&
         p->step[0].kind == STEP_TMPFS && strcmp(p->step[0].target, "/") == 0;
}

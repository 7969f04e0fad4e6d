/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* names.c: reads the answers of DNS servers on their way to pods, and notes the addresses of the
 * names that policies have, before the pod has the answer. One program for both families, as the
 * addresses in answers are of both. */
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/pkt_cls.h>
#include "names.h"
#include "names_hand.h"

#if WEIR_FAMILY == 4
#include "names_work.h"

/* Makes work.key of the first `at` characters of work.head.name, the last of which is a dot: from
 * their end on, in lower case, as these are then, too. A function of its own, so that the verifier
 * looks at it once. */
__noinline int names_turn(__u32 at)
{
	struct name_work *w = names_work();
	__u8 bad = 0;

	if (!w)
		return 0;
	w->key.len = 0;
	if (!at || at > NAME_MOST)
		return 0;
	at--;
	for (__u32 i = 0; i < NAME_MOST; i++) {
		__u8 c;

		if (i >= at)
			break;
		c = w->head.name[(at - 1 - i) & (NAME_BYTES - 1)];
		if (c >= 'A' && c <= 'Z')
			c += 'a' - 'A';
		w->head.name[(at - 1 - i) & (NAME_BYTES - 1)] = c;
		bad |= c <= ' ' || c > '~';
		w->key.name[i] = c;
	}
	if (bad)
		return 0; /* no pattern has such a name */
	w->key.name[at & (NAME_BYTES - 1)] = 0;
	w->key.len = (at + 1) * 8;
	return 0;
}

/* Reads the name at off into work.key. Returns where what follows it begins; 0 = it cannot be
 * read. Pointers lead backwards alone, so that they end. */
__noinline int names_read(struct __sk_buff *skb, __u32 off)
{
	struct name_work *w = names_work();
	__u32 at = 0, end = 0, before = off, size;
	__u8 len, low;

	if (!w)
		return 0;
	for (int i = 0; i < NAME_LABELS; i++) {
		if (bpf_skb_load_bytes(skb, off, &len, 1))
			return 0;
		if (!len) {
			end = end ? end : off + 1;
			goto whole;
		}
		if ((len & 0xc0) == 0xc0) {
			if (bpf_skb_load_bytes(skb, off + 1, &low, 1))
				return 0;
			end = end ? end : off + 2;
			off = w->msg + ((len & 0x3f) << 8 | low);
			if (off >= before)
				return 0;
			before = off;
			continue;
		}
		if (len > 63 || at + len > NAME_MOST)
			return 0;
		at &= NAME_BYTES - 1;
		size = len - 1;
		OPAQUE(size); /* to verifiers up to Linux 6.1 what is not 0 may be */
		size = (size & 63) + 1;
		if (bpf_skb_load_bytes(skb, off + 1, w->head.name + at, size))
			return 0;
		at += size;
		at &= NAME_BYTES - 1;
		w->head.name[at++] = '.';
		off += len + 1;
	}
	return 0;
whole:
	names_turn(at);
	return end;
}

/* Does one of the two sets of a pod have the pattern? */
static __always_inline int names_has(const __u64 *sets, __u64 pattern)
{
	struct name_set_key key = { .set = sets[0], .pattern = pattern };

	if (key.set && bpf_map_lookup_elem(&weir_name_sets, &key))
		return 1;
	key.set = sets[1];
	return key.set && bpf_map_lookup_elem(&weir_name_sets, &key);
}

/* Adds a pattern that a name matches, if the pod's set has it, or the one that staged policies
 * would give it. Where there is no room, those of the set come first. */
__noinline int names_add(__u64 pattern)
{
	struct name_work *w = names_work();
	__u32 n, take, staged;

	if (!w)
		return 0;
	staged = !names_has(w->pod.sets, pattern);
	if (staged && !names_has(w->pod.staged, pattern))
		return 0;
	n = take = w->count;
	for (__u32 i = 0; i < NAME_MATCHES; i++) {
		if (i >= n)
			break;
		if (w->patterns[i] == pattern)
			return 0; /* of another name of the chain */
		if (n >= NAME_MATCHES && !staged && (w->staged & 1u << i))
			take = i;
	}
	if (take >= NAME_MATCHES)
		return 0;
	if (take == n)
		w->count = n + 1;
	OPAQUE(take);
	take &= NAME_MATCHES - 1;
	w->patterns[take] = pattern;
	w->staged = (w->staged & ~(1u << take)) | staged << take;
	return 0;
}

/* Adds the patterns of a group that the name in work.head begins as. */
__noinline int names_begins(__u64 group)
{
	struct name_work *w = names_work();
	struct name_match *m;
	__u32 len;

	if (!w || w->key.len < 16)
		return 0;
	len = w->key.len / 8 - 1;
	w->head.group[0] = (__u32)group;
	w->head.group[1] = group >> 32;
	w->head.len = (len < NAME_BYTES - NAME_GROUP_BYTES ? len : NAME_BYTES - NAME_GROUP_BYTES) *
			      8 +
		      NAME_GROUP_BYTES * 8;
	m = bpf_map_lookup_elem(&weir_name_patterns, &w->head);
	if (!m)
		return 0;
	for (__u32 i = 0; i < NAME_HEADS; i++) {
		if (i >= m->count)
			break;
		if (len >= (m->more >> 8 * i & 0xff))
			names_add(m->patterns[i]);
	}
	return 0;
}

/* Adds the patterns of the pod's set that the name in work.key matches. */
__noinline int names_match(void)
{
	struct name_work *w = names_work();
	struct name_match *m;

	if (!w || !w->key.len)
		return 0;
	m = bpf_map_lookup_elem(&weir_name_patterns, &w->key);
	for (__u32 i = 0; m && i < NAME_MATCHES; i++) {
		if (i >= m->count)
			break;
		if (m->more & 1 << i)
			names_begins(m->patterns[i]);
		else
			names_add(m->patterns[i]);
	}
	return names_begins(0);
}

/* How many entries a pod, or 0 = all, has. */
static __always_inline __u32 *names_used(__u32 ifindex)
{
	__u32 *used = bpf_map_lookup_elem(&weir_name_used, &ifindex), none = 0;

	if (used)
		return used;
	bpf_map_update_elem(&weir_name_used, &ifindex, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&weir_name_used, &ifindex);
}

/* Makes an entry for the address of work.named, where the pod may have one more. What staged
 * policies alone ask for leaves room to what is in force. */
static __always_inline int names_entry(struct name_work *w)
{
	__u32 *used = names_used(w->named.ifindex), *all = names_used(0), most;

	if (!used || !all)
		return 0;
	most = *all >= NAMED_FEW ? NAMED_EACH : NAMED_MOST;
	if (w->staged == (1u << w->count) - 1)
		most /= 2;
	if (*used >= most)
		return 0;
	__builtin_memset(&w->fresh, 0, sizeof(w->fresh));
	if (!bpf_map_update_elem(&weir_names, &w->named, &w->fresh, BPF_NOEXIST)) {
		__sync_fetch_and_add(used, 1);
		__sync_fetch_and_add(all, 1);
	}
	return !!bpf_map_lookup_elem(&weir_names, &w->named);
}

/* For how many seconds a place is not to be taken: for none, less than 0, where staged policies
 * alone ask for it. */
static __always_inline __s32 names_left(const struct named_slot *s, __u32 now)
{
	return s->staged ? -1 : (__s32)(s->until - now);
}

/* Notes that a name of the pattern at index led to the address of work.named, until
 * work.said.until. The place of what is over, or would be next, is taken; by a staged pattern only
 * that of what is over, or staged too. A function of its own, so that the verifier looks at it
 * once. */
__noinline int names_note(__u32 index)
{
	struct name_work *w = names_work();
	struct named_value *v;
	__u32 take = 0, staged;
	__u64 pattern;
	__s32 least;

	if (!w)
		return 0;
	index &= NAME_MATCHES - 1;
	OPAQUE(index);
	index &= NAME_MATCHES - 1;
	pattern = w->patterns[index];
	staged = w->staged >> index & 1;
	v = bpf_map_lookup_elem(&weir_names, &w->named);
	if (!v)
		return 0;
	bpf_spin_lock(&v->lock);
	least = names_left(&v->slots[0], w->now);
#pragma unroll
	for (__u32 i = 0; i < NAMED_SLOTS; i++) {
		if (v->slots[i].pattern == pattern) {
			take = i;
			break;
		}
		if (names_left(&v->slots[i], w->now) < least) {
			take = i;
			least = names_left(&v->slots[i], w->now);
		}
	}
	take &= NAMED_SLOTS - 1;
	OPAQUE(take);
	take &= NAMED_SLOTS - 1;
	if (v->slots[take].pattern == pattern) {
		if ((__s32)(w->said.until - v->slots[take].until) > 0)
			v->slots[take].until = w->said.until;
		v->slots[take].staged = staged;
	} else if (!staged || least < 0) {
		v->slots[take].pattern = pattern;
		v->slots[take].until = w->said.until;
		v->slots[take].staged = staged;
	}
	bpf_spin_unlock(&v->lock);
	return 0;
}

/* Notes an address of the answer with all patterns of its names. */
__noinline int names_put(__u32 index)
{
	struct name_work *w = names_work();
	__u32 ttl, *used;

	if (!w || index >= NAME_ADDRS)
		return 0;
	OPAQUE(index);
	index &= NAME_ADDRS - 1;
	w->named.ifindex = w->ifindex;
	__builtin_memcpy(w->named.addr, w->addr[index].addr, 16);
	ttl = w->addr[index].ttl < w->ttl ? w->addr[index].ttl : w->ttl;
	ttl = ttl < NAME_TTL_LEAST ? NAME_TTL_LEAST : ttl > NAME_TTL_MOST ? NAME_TTL_MOST : ttl;
	w->said.until = w->now + ttl + w->pod.extra;
	if (!bpf_map_lookup_elem(&weir_names, &w->named) && !names_entry(w)) {
		names_count(NAMES_FULL);
		return 0;
	}
	for (__u32 i = 0; i < NAME_MATCHES; i++) {
		if (i >= w->count)
			break;
		names_note(i);
	}
	used = names_used(w->ifindex);
	if (w->said.len && used && *used <= NAMED_EACH)
		bpf_map_update_elem(&weir_name_said, &w->named, &w->said, BPF_ANY);
	return 0;
}

/* Reads the records of an answer, which begin at off. Returns 0 when all of them were read. */
__noinline int names_records(struct __sk_buff *skb, __u32 off, __u32 records)
{
	struct name_work *w = names_work();
	struct {
		__be16 type;
		__be16 class;
		__be16 ttl[2];
		__be16 len;
	} r;
	int next;

	if (!w)
		return -1;
	for (__u32 i = 0; i < NAME_RECORDS; i++) {
		__u32 ttl, n = w->addrs;

		if (i >= records)
			return 0;
		next = names_read(skb, off);
		if (next <= 0 || bpf_skb_load_bytes(skb, next, &r, 10))
			return -1;
		off = next + 10;
		ttl = (__u32)bpf_ntohs(r.ttl[0]) << 16 | bpf_ntohs(r.ttl[1]);
		if (r.class == bpf_htons(DNS_CLASS_IN)) {
			if (r.type == bpf_htons(DNS_CNAME)) {
				if (names_read(skb, off) <= 0)
					return -1;
				names_match();
				if (ttl < w->ttl)
					w->ttl = ttl;
			} else if (n < NAME_ADDRS &&
				   ((r.type == bpf_htons(DNS_A) && r.len == bpf_htons(4)) ||
				    (r.type == bpf_htons(DNS_AAAA) && r.len == bpf_htons(16)))) {
				int four = r.type == bpf_htons(DNS_A);

				OPAQUE(n);
				n &= NAME_ADDRS - 1;
				w->addr[n].addr[0] = w->addr[n].addr[1] = 0;
				w->addr[n].addr[2] = bpf_htonl(0xffff);
				if (four ? bpf_skb_load_bytes(skb, off, &w->addr[n].addr[3], 4) :
					   bpf_skb_load_bytes(skb, off, w->addr[n].addr, 16))
					return -1;
				w->addr[n].ttl = ttl;
				w->addrs = n + 1;
			} else if (n >= NAME_ADDRS) {
				return -1;
			} else if (r.type == bpf_htons(DNS_SVCB) ||
				   r.type == bpf_htons(DNS_HTTPS)) {
				w->hints = 1;
			}
		}
		off += bpf_ntohs(r.len);
	}
	return -1;
}

/* Reads an answer as far as that can be read here. */
static __always_inline int names_answer(struct __sk_buff *skb, struct name_work *w)
{
	struct name_question *q = &w->q;
	struct {
		__be16 id;
		__be16 flags;
		__be16 questions;
		__be16 answers;
	} head;
	struct name_addr server;
	struct name_pod *pod;
	int next, step, trusted;

	__builtin_memset(q, 0, sizeof(*q));
	q->ifindex = skb->ifindex;
	w->count = w->staged = w->addrs = w->size = w->hints = 0;
	pod = bpf_map_lookup_elem(&weir_name_pods, &q->ifindex);
	if (!pod)
		return NAME_PASS;
	step = names_packet(skb, w, q);
	if (step != NAME_READ)
		return step;
	__builtin_memcpy(&server, q->server, sizeof(server));
	trusted = !!bpf_map_lookup_elem(&weir_name_servers, &server);
	if (trusted && q->proto == IPPROTO_TCP) {
		step = names_segment(skb, q, w->l4, w->end, &w->msg, &w->size);
		if (step != NAME_READ)
			return step;
	}
	/* An answer, without error, to one question. */
	if (bpf_skb_load_bytes(skb, w->msg, &head, 8) ||
	    (head.flags & bpf_htons(0xf80f)) != bpf_htons(0x8000) ||
	    head.questions != bpf_htons(1) || !head.answers)
		return NAME_PASS;
	if (!trusted) {
		names_count(NAMES_UNTRUSTED);
		return NAME_PASS;
	}
	q->id = head.id;
	if (bpf_map_delete_elem(&weir_name_asked, q)) {
		names_count(NAMES_UNASKED);
		return NAME_PASS;
	}
	w->pod = *pod;
	w->ifindex = q->ifindex;
	w->now = names_now();
	w->ttl = NAME_TTL_MOST;
	next = names_read(skb, w->msg + DNS_HEADER);
	if (next <= 0)
		return NAME_HAND;
	w->said.len = w->key.len ? w->key.len / 8 - 1 : 0;
	__builtin_memcpy(w->said.name, w->head.name, sizeof(w->said.name));
	names_match();
	if (names_records(skb, next + 4, bpf_ntohs(head.answers)) || w->hints)
		return NAME_HAND;
	return NAME_READ;
}

/* Leads what is not read here to the agent. 0 = it goes on from here. */
static __always_inline int names_handing(struct __sk_buff *skb, struct name_work *w)
{
	int tcp = w->q.proto == IPPROTO_TCP && w->pieces.proto != IPPROTO_FRAGMENT, ret;
	__be16 id = w->q.id;

	if (tcp)
		w->q.id = 0;
	ret = names_hand(skb);
	if (tcp)
		names_stream(&w->q, ret ? NAME_STREAM_HANDED : NAME_STREAM_LOST, w->size);
	else if (ret && w->pieces.proto == IPPROTO_FRAGMENT)
		names_stream(&w->pieces, NAME_STREAM_HANDED, 0);
	if (ret && tcp && w->size) { /* the agent takes the question back */
		w->q.id = id;
		bpf_map_update_elem(&weir_name_asked, &w->q, &w->now, BPF_ANY);
	}
	return ret;
}

/* What goes on to a pod with names. It was evaluated before: it passes whatever it is. */
SEC("tc")
int weir_names_learn(struct __sk_buff *skb)
{
	struct name_work *w = names_work();
	int step, ret;

	if (!w)
		return TC_ACT_OK;
	step = names_answer(skb, w);
	if (step == NAME_HAND) {
		ret = names_handing(skb, w);
		if (ret)
			return ret;
		step = NAME_LOST;
	}
	if (step == NAME_LOST)
		names_count(NAMES_UNREAD);
	if (step == NAME_PASS || !w->count || !w->addrs)
		return TC_ACT_OK;
	for (__u32 i = 0; i < NAME_ADDRS; i++) {
		if (i >= w->addrs)
			break;
		names_put(i);
	}
	names_count(NAMES_LEARNED);
	return TC_ACT_OK;
}

#endif

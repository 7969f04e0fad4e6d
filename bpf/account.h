/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* account.h: what flows carry is counted in their entries, and reported: by a packet when an
 * interval is over, and where a flow ends. What nobody meets again is reported by user space, which
 * removes it. */
#ifndef WEIR_ACCOUNT_H
#define WEIR_ACCOUNT_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "flow_fields.h"
#include "scratch.h"
#include "clock.h"
#include "events.h"
#include "parse.h"
#include "flow_table.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 12); /* bytes; user space sets it where flows are accounted for */
} weir_records SEC(".maps");

#define ACCOUNT_PACKETS_AT 36
/* The upper halves of both counters: what has come there is reported before it overflows. */
#define ACCOUNT_HALF ((1ull << 63) | (1ull << (ACCOUNT_PACKETS_AT - 1)))
/* A frame that is longer may be more than one packet (GSO). */
#define ACCOUNT_ONE_PACKET 1514

static __always_inline void account_count(__u32 which)
{
	__u64 *n = bpf_map_lookup_elem(&weir_counts, &which);

	if (n)
		(*n)++;
}

/* Sets a counter to 0 and returns what it was, at once: BPF_ATOMIC | BPF_XCHG, r2 with *r1, which
 * the compiler has no name for at the instruction set of the oldest kernels. */
static __always_inline __u64 account_take(__u64 *count)
{
	__u64 old;

	asm volatile("r1 = %[count]\n"
		     "r2 = 0\n"
		     ".8byte 0x000000e1000021db\n"
		     "%[old] = r2\n"
		     : [old] "=r"(old)
		     : [count] "r"(count)
		     : "r1", "r2", "memory");
	return old;
}

/* A function of its own, so that struct flow_record is among the object's types. */
static __noinline int account_fill(struct flow_record *r, const struct flow_key *k,
				   const struct flow_value *f)
{
	__u64 named;

	if (!r || !k || !f)
		return 0;
	addr_widen(r->seen.saddr, &k->saddr);
	addr_widen(r->seen.daddr, &k->daddr);
	r->seen.sport = k->sport;
	r->seen.dport = k->dport;
	addr_widen(r->sent.saddr, &f->saddr);
	addr_widen(r->sent.daddr, &f->daddr);
	r->sent.sport = f->sport;
	r->sent.dport = f->dport;
	addr_widen(r->svc_addr, &flow_svc(f)->addr);
	addr_widen(r->asked_addr, &f->asked.addr);
	addr_widen(r->backend_addr, &flow_backend(f)->addr);
	named = flow_named(f);
	if (named) {
		r->backend_addr[0] = (__u32)named;
		r->backend_addr[1] = named >> 32;
	}
	addr_widen(r->nexthop, &f->nexthop);
	r->svc_port = flow_svc(f)->port;
	r->asked_port = f->asked.port;
	r->backend_port = flow_backend(f)->port;
	r->svc_proto = flow_svc(f)->proto;
	r->proto = k->proto;
	r->family = WEIR_FAMILY;
	r->action = f->action;
	r->state = f->state;
	r->flags = f->flags;
	r->flags_seen = f->flags_seen;
	r->staged = f->staged;
	r->ends = f->ends;
	r->ifindex = f->ifindex;
	r->rules[0] = f->rules[0];
	r->rules[1] = f->rules[1];
	r->staged_rules[0] = f->staged_rules[0];
	r->staged_rules[1] = f->staged_rules[1];
	r->started[0] = f->started[0];
	r->started[1] = f->started[1];
	r->rtt = f->rtt;
	r->retransmitted = f->retransmitted;
	return 0;
}

/* Counts a flow that ends, by its entry of the original direction, before that goes. */
static __always_inline void account_over(struct flow_value *f)
{
	if ((f->account & (ACCOUNT_BEGUN | ACCOUNT_OVER)) != ACCOUNT_BEGUN)
		return;
	f->account |= ACCOUNT_OVER;
	account_count(COUNT_FLOWS_OVER);
}

/* Reports what an entry has counted. Of two processors that find an interval over, one does. */
static __noinline int account_report(const struct flow_key *k, struct flow_value *f, __u8 end)
{
	struct flow_record *r;
	__u64 count, now;

	if (!k || !f)
		return 0;
	count = account_take(&f->count);
	f->since = clock_now();
	if (end != RECORD_GOES_ON)
		account_over(f);
	if (!count)
		return 0;
	r = bpf_ringbuf_reserve(&weir_records, sizeof(*r), 0);
	if (!r) {
		/* What goes on is reported an interval later. */
		if (end == RECORD_GOES_ON && !(count & ACCOUNT_HALF))
			__sync_fetch_and_add(&f->count, count);
		else
			account_count(COUNT_RECORDS_LOST);
		return 0;
	}
	account_fill(r, k, f);
	f->retransmitted = 0;
	now = bpf_ktime_get_ns();
	r->end = f->account & ACCOUNT_REPORTED ? end : end | RECORD_FIRST;
	f->account |= ACCOUNT_REPORTED;
	r->at[0] = (__u32)now;
	r->at[1] = now >> 32;
	r->count[0] = (__u32)count;
	r->count[1] = count >> 32;
	/* User space looks each time that its own interval is over. */
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return 0;
}

/* What a packet is in flow_value.count. */
static __always_inline __u64 account_size(struct __sk_buff *skb)
{
	__u32 segments = skb->len > ACCOUNT_ONE_PACKET ? skb->gso_segs : 0;

	return ((__u64)(segments ?: 1) << ACCOUNT_PACKETS_AT) + skb->len - ETH_SIZE;
}

/* Looks how far a segment of TCP of an open flow gets, before its headers are changed: one with
 * data that brings nothing beyond what came before was sent again, or was overtaken. Of two
 * processors on one flow the later store stands, so that the count may be off by a segment. */
static __always_inline void account_segment(struct __sk_buff *skb, const struct pkt *p,
					    struct flow_value *f)
{
	void *head = (void *)(long)skb->data + ETH_SIZE;
	__u32 off = p->l4_off & IP_L4_MASK, end;
	struct tcphdr *tcp = (void *)(long)skb->data + off;
	__s32 data;

	if (!account_interval || p->l4 != L4_TCP)
		return;
	if ((void *)(tcp + 1) > (void *)(long)skb->data_end ||
	    head + sizeof(ip_head) > (void *)(long)skb->data_end)
		return;
	/* Ethernet pads short frames; longer ones than a header can say have no length there. */
	end = ip_bytes(head);
	data = (end ? ETH_SIZE + end : skb->len) - off - tcp->doff * 4;
	if (data <= 0)
		return;
	end = bpf_ntohl(tcp->seq) + data;
	if (f->tcp_end && (__s32)(end - f->tcp_end) <= 0)
		__sync_fetch_and_add(&f->retransmitted, 1);
	else
		f->tcp_end = end;
}

/* The frontend that the socket asked for whose packet this is, where connect() gave it a backend: a
 * packet keeps its socket on the way out of a pod. */
static __noinline int account_asked(struct __sk_buff *skb)
{
	__u64 cookie = bpf_get_socket_cookie(skb);
	__u32 at = cookie % STREAM_SLOTS;
	struct scratch *w = scratch_get();
	struct sock_stream *t;

	if (!w || !cookie || w->pkt.key.proto != IPPROTO_TCP)
		return 0;
	t = bpf_map_lookup_elem(&weir_streams, &at);
	if (!t)
		return 0;
	bpf_spin_lock(&t->lock);
	if (t->cookie[0] == (__u32)cookie && t->cookie[1] == cookie >> 32 &&
	    t->got_port == w->pkt.key.dport && addr_same(&t->got, &w->pkt.key.daddr)) {
		w->fwd.asked.addr = t->asked;
		w->fwd.asked.port = t->asked_port;
		w->fwd.asked.proto = IPPROTO_TCP;
	}
	bpf_spin_unlock(&t->lock);
	return 0;
}

/* Notes what policy said in both entries of a flow, scratch.fwd and .rev, that begins with a
 * packet. */
__noinline int account_begin(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	__u64 now = bpf_ktime_get_ns();
	__u32 rule;

	if (!w)
		return 0;
	rule = w->policy.rule;
	event_staged();
	w->policy.rule = rule;
	if (w->pkt.hook == HOOK_FROM_WORKLOAD)
		account_asked(skb);
	w->fwd.since = w->rev.since = w->fwd.seen;
	w->fwd.count = account_size(skb);
	w->fwd.flags_seen = w->pkt.tcp;
	w->fwd.started[0] = w->rev.started[0] = (__u32)now;
	w->fwd.started[1] = w->rev.started[1] = now >> 32;
	w->fwd.ends = w->rev.ends = w->policy.ends;
	w->fwd.staged = w->rev.staged = w->policy.staged;
	for (int i = 0; i < 2; i++) {
		w->fwd.rules[i] = w->rev.rules[i] = w->policy.rules[i];
		w->fwd.staged_rules[i] = w->rev.staged_rules[i] = w->policy.staged_rules[i];
	}
	w->rev.asked = w->fwd.asked;
	w->fwd.account = ACCOUNT_BEGUN;
	return 0;
}

/* Counts a flow whose entries are there by now: what is counted and neither ends nor is found in
 * the tables was evicted (flowtable.Evicted). */
static __noinline int account_entered(void)
{
	account_count(COUNT_FLOWS_BEGUN);
	return 0;
}

/* The same of a flow that was evaluated again. */
static __always_inline void account_again(const struct scratch *w, struct flow_value *f)
{
	if (!account_interval || (f->flags & FLOW_HAND_ON))
		return;
	f->rules[0] = w->policy.rules[0];
	f->rules[1] = w->policy.rules[1];
}

/* Counts a packet that an open flow carries, whose entry says by now that it was seen. */
static __always_inline void account_packet(struct __sk_buff *skb, const struct flow_key *k,
					   struct flow_value *f)
{
	__u32 due;

	if (!account_interval)
		return;
	/* What decides is read first: loads wait for what is added atomically. */
	due = clock_past(f->seen, f->since, account_interval - 1) || (f->count & ACCOUNT_HALF);
	__sync_fetch_and_add(&f->count, account_size(skb));
	if (due)
		account_report(k, f, RECORD_GOES_ON);
}

/* The same of scratch.pkt. */
static __noinline int account_scratch(struct __sk_buff *skb, struct flow_value *f)
{
	struct scratch *w = scratch_get();

	if (!w || !f)
		return 0;
	account_segment(skb, &w->pkt, f);
	account_packet(skb, &w->pkt.key, f);
	return 0;
}

/* Reports both directions of a flow that is over, of which f is the one of key p->key. */
static __noinline int account_ended(struct pkt *p, struct flow_value *f)
{
	struct scratch *w = scratch_get();
	struct flow_value *other;

	if (!w || !p || !f)
		return 0;
	account_report(&p->key, f, RECORD_CLOSED);
	flow_partner(&w->okey, f, p->key.proto);
	other = bpf_map_lookup_elem(&weir_flows, &w->okey);
	if (!other)
		other = bpf_map_lookup_elem(&weir_flows_new, &w->okey);
	if (other && flow_leads_back(other, p))
		account_report(&w->okey, other, RECORD_CLOSED);
	return 0;
}

/* Counts scratch.pkt, which may have changed the state of its flow f; account_was is what that was
 * before. A flow whose ends have closed it is reported by the packet after that one, which
 * acknowledges the last FIN; after a RST nothing comes. */
static __noinline int account_state(struct __sk_buff *skb, struct flow_value *f)
{
	struct scratch *w = scratch_get();

	if (!w || !f)
		return 0;
	f->flags_seen |= w->pkt.tcp;
	account_segment(skb, &w->pkt, f);
	account_packet(skb, &w->pkt.key, f);
	if (!(f->state & STATE_CLOSING) || (f->account & ACCOUNT_ENDED))
		return 0;
	if (!(w->account_was & STATE_CLOSING) && !(f->state & STATE_RESET))
		return 0;
	f->account |= ACCOUNT_ENDED;
	return account_ended(&w->pkt, f);
}

/* Notes in both entries of a flow of TCP how long its handshake took, up to the packet at hand: the
 * way to the server and back, and to the client and back, from wherever between them this is. f is
 * the entry of the client's direction, whose SYN was counted, and the other has so many packets.
 * Where a segment was sent again it is not known which of them was answered. */
static __always_inline void account_rtt(const struct pkt *p, struct flow_value *f,
					struct flow_value *other, __u64 answers)
{
	__u64 took;

	if (p->l4 != L4_TCP || !(f->flags_seen & TCP_SYN) || (f->flags & FLOW_REPLY) ||
	    f->count >> ACCOUNT_PACKETS_AT != 1 || other->count >> ACCOUNT_PACKETS_AT != answers)
		return;
	took = bpf_ktime_get_ns() - ((__u64)f->started[1] << 32 | f->started[0]);
	took /= 1000;
	f->rtt = other->rtt = took >> 32 ? 0 : took;
}

/* Reports what is left of an entry that goes to another flow, or away. */
static __always_inline void account_gone(const struct flow_key *k, struct flow_value *f)
{
	if (account_interval)
		account_report(k, f, RECORD_REPLACED);
}

#endif

/*
 * RDMA Writes and Sends with immediate data: the peer of the image `immediate`. The protocol is in
 * apps/src/immediate.rs.
 *
 *   immediate server ADDRESS PORT COUNT SIZE
 *   immediate client ADDRESS PORT COUNT SIZE
 *
 * A server serves one client. The last line says how many rounds there were; the status is 1 if
 * anything was not as expected.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

enum { SENT = 16, TRANSFERS = 8 };

struct advert {
	uint64_t address;
	uint32_t key;
	uint32_t size;
} __attribute__((packed));

static struct rdma_cm_id *id;
static struct ibv_mr *source, *sink, *message, *landed;
static struct advert peer;
static uint32_t count, size;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static struct ibv_mr *memory(size_t length, int open)
{
	void *bytes = calloc(1, length);
	struct ibv_mr *mr = NULL;

	if (bytes)
		mr = open ? rdma_reg_write(id, bytes, length) : rdma_reg_msgs(id, bytes, length);
	if (!mr)
		fail("memory");
	return mr;
}

/* A receive for a Send, or one without segments for a Write. */
static void post_receive(int with_segment)
{
	struct ibv_sge sge = { (uintptr_t)landed->addr, SENT, landed->lkey };

	if (rdma_post_recvv(id, NULL, &sge, with_segment))
		fail("post a receive");
}

static void post(enum ibv_wr_opcode opcode, struct ibv_mr *from, uint32_t length, uint32_t immediate)
{
	struct ibv_sge sge = { (uintptr_t)from->addr, length, from->lkey };
	struct ibv_send_wr *bad, request = {
		.sg_list = &sge,
		.num_sge = length > 0,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = htonl(immediate),
		.wr.rdma = { be64toh(peer.address), ntohl(peer.key) },
	};
	struct ibv_wc wc;

	if (ibv_post_send(id->qp, &request, &bad))
		fail("ibv_post_send");
	if (rdma_get_send_comp(id, &wc) != 1 || wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "a request ended with %s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
}

/* Waits for a message, which has to be of this kind. */
static void expect(enum ibv_wc_opcode opcode, uint32_t length, uint32_t immediate)
{
	struct ibv_wc wc;

	if (rdma_get_recv_comp(id, &wc) != 1)
		fail("rdma_get_recv_comp");
	if (wc.status != IBV_WC_SUCCESS || wc.opcode != opcode || wc.byte_len != length ||
	    !(wc.wc_flags & IBV_WC_WITH_IMM) || ntohl(wc.imm_data) != immediate) {
		fprintf(stderr, "expected opcode %d, %u bytes, immediate %u; came: %s, opcode %d, %u bytes, "
			"flags %x, immediate %u\n", opcode, length, immediate, ibv_wc_status_str(wc.status),
			wc.opcode, wc.byte_len, wc.wc_flags, ntohl(wc.imm_data));
		exit(1);
	}
}

static void write_to_peer(uint32_t round, uint32_t length)
{
	for (uint32_t i = 0; i < length; i++)
		((uint8_t *)source->addr)[i] = round + i;
	post(IBV_WR_RDMA_WRITE_WITH_IMM, source, length, round);
}

static void was_written(uint32_t round, uint32_t length)
{
	expect(IBV_WC_RECV_RDMA_WITH_IMM, length, round);
	for (uint32_t i = 0; i < length; i++) {
		if (((uint8_t *)sink->addr)[i] != (uint8_t)(round + i)) {
			fprintf(stderr, "round %u: byte %u is wrong\n", round, i);
			exit(1);
		}
	}
}

static void expect_a_round(void)
{
	post_receive(0);
	post_receive(1);
}

static void prepare(void)
{
	source = memory(size, 0);
	sink = memory(size, 1);
	message = memory(SENT, 0);
	landed = memory(SENT, 0);
	post_receive(1);
	expect_a_round();
}

static void greet(void)
{
	struct advert *own = message->addr;

	own->address = htobe64((uintptr_t)sink->addr);
	own->key = htonl(sink->rkey);
	own->size = htonl(size);
	post(IBV_WR_SEND_WITH_IMM, message, SENT, 0);
	expect(IBV_WC_RECV, SENT, 0);
	memcpy(&peer, landed->addr, sizeof(peer));
}

static void one_round(uint32_t round, int first)
{
	uint32_t lengths[] = { size, 0, 1, size / 2 }, length = lengths[round % 4];

	if (first) {
		write_to_peer(round, length);
		was_written(round, length);
		expect_a_round();
		post(IBV_WR_SEND_WITH_IMM, message, SENT, round);
		expect(IBV_WC_RECV, SENT, round);
	} else {
		was_written(round, length);
		write_to_peer(round, length);
		expect(IBV_WC_RECV, SENT, round);
		expect_a_round();
		post(IBV_WR_SEND_WITH_IMM, message, SENT, round);
	}
}

static void wait_for_the_end(void)
{
	struct rdma_cm_event *event;
	enum rdma_cm_event_type type;

	do {
		if (rdma_get_cm_event(id->channel, &event))
			fail("rdma_get_cm_event");
		type = event->event;
		rdma_ack_cm_event(event);
	} while (type != RDMA_CM_EVENT_DISCONNECTED);
}

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr attributes = {
		.cap = { TRANSFERS, TRANSFERS, 1, 1, 0 },
		.sq_sig_all = 1,
		.qp_type = IBV_QPT_RC,
	};
	struct rdma_conn_param param = {
		.responder_resources = 1,
		.initiator_depth = 1,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
	struct rdma_cm_id *listener;
	int client;

	if (argc != 6) {
		fprintf(stderr, "usage: immediate server|client ADDRESS PORT COUNT SIZE\n");
		return 2;
	}
	client = !strcmp(argv[1], "client");
	count = strtoul(argv[4], NULL, 10);
	size = strtoul(argv[5], NULL, 10);
	if (!client)
		hints.ai_flags = RAI_PASSIVE;
	if (rdma_getaddrinfo(argv[2], argv[3], &hints, &found))
		fail("rdma_getaddrinfo");
	if (rdma_create_ep(client ? &id : &listener, found, NULL, &attributes))
		fail("rdma_create_ep");
	if (client) {
		prepare();
		if (rdma_connect(id, &param))
			fail("rdma_connect");
	} else {
		if (rdma_listen(listener, 0))
			fail("rdma_listen");
		if (rdma_get_request(listener, &id))
			fail("rdma_get_request");
		prepare();
		if (rdma_accept(id, &param))
			fail("rdma_accept");
	}
	greet();
	for (uint32_t round = 1; round <= count; round++)
		one_round(round, client);
	if (client)
		rdma_disconnect(id);
	else
		wait_for_the_end();
	printf("immediate: %u rounds, each Write and Send with its immediate data\n", count);
	return 0;
}

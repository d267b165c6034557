// One end of a connection by rdma_cm that goes from step to step and says so: "step NAME". At the
// steps that its last arguments name it waits for a line before it goes on, so that a test can do
// something to the other end meanwhile. It writes each event, and the last completion's status.
//
//     steps server|client ADDRESS [STEP...]

#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PORT 7471
#define LENGTH 65536
#define REQUESTS 4
#define CHECK(what) do { if (!(what)) { printf("line %d: %s: %m\n", __LINE__, #what); exit(1); } } while (0)

static char **pauses, bytes[LENGTH];
static struct rdma_event_channel *channel;
static struct rdma_cm_id *last_id;

static int pauses_at(const char *name)
{
	char **at;

	for (at = pauses; *at; at++)
		if (!strcmp(*at, name))
			return 1;
	return 0;
}

static void step(const char *name)
{
	printf("step %s\n", name);
	if (pauses_at(name))
		CHECK(getchar() != EOF);
}

// The next event's kind.
static enum rdma_cm_event_type next(void)
{
	enum rdma_cm_event_type kind;
	struct rdma_cm_event *event;

	CHECK(!rdma_get_cm_event(channel, &event));
	kind = event->event;
	last_id = event->id;
	printf("event %s %d\n", rdma_event_str(kind), event->status);
	CHECK(!rdma_ack_cm_event(event));
	return kind;
}

static void with_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = REQUESTS, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};

	CHECK(!rdma_create_qp(id, NULL, &attr));
}

// Sends for which the other end has no receive: they are outstanding for as long as it lives.
static struct ibv_mr *send_all(struct rdma_cm_id *id)
{
	struct ibv_mr *mr = ibv_reg_mr(id->pd, bytes, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = LENGTH };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	int n;

	CHECK(mr);
	sge.lkey = mr->lkey;
	for (n = 0; n < REQUESTS; n++)
		CHECK(!ibv_post_send(id->qp, &wr, &bad));
	return mr;
}

static void all_complete(struct rdma_cm_id *id)
{
	struct ibv_wc wc;
	int n, found;

	for (n = 0; n < REQUESTS; n += found) {
		found = ibv_poll_cq(id->send_cq, 1, &wc);
		CHECK(found >= 0);
	}
	printf("status %s\n", ibv_wc_status_str(wc.status));
}

// A receive into memory that is registered, and then not there any more.
static void receive_into_nothing(struct rdma_cm_id *id)
{
	void *at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_sge sge = { .addr = (uintptr_t)at, .length = LENGTH };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_mr *mr;

	CHECK(at != MAP_FAILED);
	// Where the program may not write the device may not either.
	CHECK(!mprotect(at, LENGTH, PROT_READ));
	CHECK(!ibv_reg_mr(id->pd, at, LENGTH, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	CHECK(!mprotect(at, LENGTH, PROT_READ | PROT_WRITE));
	CHECK(mr = ibv_reg_mr(id->pd, at, LENGTH, IBV_ACCESS_LOCAL_WRITE));
	sge.lkey = mr->lkey;
	CHECK(!ibv_post_recv(id->qp, &wr, &bad));
	CHECK(!munmap(at, LENGTH));
}

// Waits for the end of a connection that is, or may be, established.
static void until_the_end(struct rdma_cm_id *id)
{
	struct ibv_mr *mr = NULL;

	if (next() == RDMA_CM_EVENT_ESTABLISHED) {
		if (pauses_at("sent")) {
			mr = send_all(id);
			step("sent");
			all_complete(id);
		}
		step("established");
		if (pauses_at("disconnecting")) {
			CHECK(!rdma_disconnect(id));
			step("disconnecting");
		}
		if (next() == RDMA_CM_EVENT_DISCONNECTED)
			rdma_disconnect(id);
	}
	if (mr)
		CHECK(!ibv_dereg_mr(mr));
	rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
}

static void serve(struct sockaddr_in *address)
{
	struct rdma_conn_param param = { .rnr_retry_count = 7 };
	struct rdma_cm_id *listener, *id;

	CHECK(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)address));
	CHECK(!rdma_listen(listener, 1));
	step("listening");
	CHECK(next() == RDMA_CM_EVENT_CONNECT_REQUEST);
	id = last_id;
	step("request");
	with_queue_pair(id);
	if (pauses_at("unmapped")) {
		receive_into_nothing(id);
		step("unmapped");
	}
	if (rdma_accept(id, &param)) {
		printf("refused %m\n");
		next();
		rdma_destroy_qp(id);
		CHECK(!rdma_destroy_id(id));
	} else {
		step("accepted");
		until_the_end(id);
	}
	CHECK(!rdma_destroy_id(listener));
}

static void ask(struct sockaddr_in *address)
{
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)address, 5000));
	CHECK(next() == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(id, 5000));
	CHECK(next() == RDMA_CM_EVENT_ROUTE_RESOLVED);
	step("routed");
	if (pauses_at("reply")) {
		// A queue pair that the identifier does not know: the program itself confirms the reply.
		struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
		struct ibv_cq *cq = ibv_create_cq(id->verbs, 1, NULL, NULL, 0);
		struct ibv_qp_init_attr attr = {
			.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		};
		struct ibv_qp *qp;

		CHECK(pd && cq && (qp = ibv_create_qp(pd, &attr)));
		param.qp_num = qp->qp_num;
		CHECK(!rdma_connect(id, &param));
		CHECK(next() == RDMA_CM_EVENT_CONNECT_RESPONSE);
		step("reply");
		exit(1);
	}
	with_queue_pair(id);
	CHECK(!rdma_connect(id, &param));
	step("asked");
	until_the_end(id);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };

	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(argc > 2 && inet_pton(AF_INET, argv[2], &address.sin_addr) == 1);
	pauses = argv + 3;
	CHECK(channel = rdma_create_event_channel());
	(*argv[1] == 's' ? serve : ask)(&address);
	rdma_destroy_event_channel(channel);
	printf("over\n");
	return 0;
}

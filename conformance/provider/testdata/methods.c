// SPDX-License-Identifier: BSD-2-Clause

// Makes libmlx5 send requests to its driver's own methods, by functions of mlx5dv.h. Most fail, because the emulated
// kernel implements few methods; the test reads the record of the requests. Prints how many functions failed.
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #what); exit(1); } } while (0)

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	CHECK(devices && devices[0]);
	struct mlx5dv_context_attr with = {.flags = MLX5DV_CONTEXT_FLAGS_DEVX};
	struct ibv_context *c = mlx5dv_open_device(devices[0], &with);
	CHECK(c || (c = ibv_open_device(devices[0])));
	struct ibv_pd *pd = ibv_alloc_pd(c);
	struct ibv_cq *cq = ibv_create_cq(c, 1, NULL, NULL, 0);
	CHECK(pd && cq);
	uint64_t in[64] = {0}, out[64] = {0};
	void *page = aligned_alloc(4096, 4096);
	uint32_t eqn;
	char path[256];
	struct mlx5dv_flow_match_parameters *mask = calloc(1, sizeof *mask + 64);
	CHECK(page && mask);
	mask->match_sz = 64;
	struct mlx5dv_flow_matcher_attr matcher = {.type = IBV_FLOW_ATTR_NORMAL, .match_criteria_enable = 1,
		.match_mask = mask, .comp_mask = MLX5DV_FLOW_MATCHER_MASK_FT_TYPE, .ft_type = MLX5DV_FLOW_TABLE_TYPE_NIC_RX};
	struct mlx5dv_steering_anchor_attr anchor = {.ft_type = MLX5DV_FLOW_TABLE_TYPE_NIC_RX};
	struct ibv_alloc_dm_attr dm = {.length = 64};
	struct mlx5dv_alloc_dm_attr steering = {.type = MLX5DV_DM_TYPE_STEERING_SW_ICM};
	int failed = 0;

	failed += mlx5dv_devx_general_cmd(c, in, sizeof in, out, sizeof out) != 0;
	failed += !mlx5dv_devx_obj_create(c, in, sizeof in, out, sizeof out);
	failed += mlx5dv_devx_cq_query(cq, in, sizeof in, out, sizeof out) != 0;
	failed += mlx5dv_devx_cq_modify(cq, in, sizeof in, out, sizeof out) != 0;
	failed += !mlx5dv_devx_umem_reg(c, page, 4096, IBV_ACCESS_LOCAL_WRITE);
	failed += !mlx5dv_devx_create_cmd_comp(c);
	failed += !mlx5dv_devx_create_event_channel(c, MLX5DV_DEVX_CREATE_EVENT_CHANNEL_FLAGS_OMIT_EV_DATA);
	failed += mlx5dv_devx_query_eqn(c, 0, &eqn) != 0;
	failed += !mlx5dv_devx_alloc_uar(c, MLX5DV_UAR_ALLOC_TYPE_NC);
	failed += !mlx5dv_alloc_var(c, 0);
	failed += !mlx5dv_pp_alloc(c, 48, in, 0);
	failed += !mlx5dv_alloc_dm(c, &dm, &steering);
	failed += !mlx5dv_create_flow_matcher(c, &matcher);
	failed += !mlx5dv_create_steering_anchor(c, &anchor);
	failed += !mlx5dv_create_flow_action_modify_header(c, 8, in, MLX5DV_FLOW_TABLE_TYPE_NIC_TX);
	failed += !mlx5dv_create_flow_action_packet_reformat(c, 64, in,
		MLX5DV_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TO_L2_TUNNEL, MLX5DV_FLOW_TABLE_TYPE_NIC_TX);
	failed += !mlx5dv_reg_dmabuf_mr(pd, 0, 4096, 0, dup(0), IBV_ACCESS_LOCAL_WRITE, 0);
	failed += mlx5dv_get_data_direct_sysfs_path(c, path, sizeof path) != 0;
	printf("%d functions failed\n", failed);
	return 0;
}

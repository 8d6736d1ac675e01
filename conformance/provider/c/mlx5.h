// SPDX-License-Identifier: BSD-2-Clause

// The driver of an mlx5 adapter: mlx5.c has its commands, mlx5_queues.c its queues.
#ifndef GOVERBS_MLX5_H
#define GOVERBS_MLX5_H

#include "emulated.h"

struct mlx5_cqe64;

enum { UNIT = 16 }; // unit of request sizes

bool mlx5_rung(void);
bool mlx5_next_send(struct qp *, struct request *);
bool mlx5_next_receive(struct qp *, struct receive *);
void mlx5_consume_receive(struct qp *, const struct receive *);
bool mlx5_complete(struct cq *, const struct completion *);
bool mlx5_take_request(struct cq *);
bool mlx5_read_tags(struct request *, const uint8_t *at, const uint8_t *end);
uint8_t mlx5_put_tagged(struct mlx5_cqe64 *, const struct completion *, uint8_t opcode);
int mlx5_switch_buffer(struct cq *, uint8_t *buffer, uint32_t entries);

#endif

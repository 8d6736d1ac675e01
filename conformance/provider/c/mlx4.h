// SPDX-License-Identifier: BSD-2-Clause

// The driver of an mlx4 adapter: mlx4.c has its commands, mlx4_queues.c its queues.
#ifndef GOVERBS_MLX4_H
#define GOVERBS_MLX4_H

#include "idle.h"

enum { DATA = 16, ENTRY = 64, MOST_STRIDE = 10 }; // sizes of a data segment and of a completion; maximum log2 of the stride

void mlx4_clear_entries(struct cq *, uint8_t *buffer, uint32_t entries);
int mlx4_switch_buffer(struct cq *, uint8_t *buffer, uint32_t entries);

bool mlx4_next_send(struct qp *, struct request *);
bool mlx4_next_receive(struct qp *, struct receive *);
void mlx4_consume_receive(struct qp *, const struct receive *);
bool mlx4_complete(struct cq *, const struct completion *);
bool mlx4_take_request(struct cq *);

#endif

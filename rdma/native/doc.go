// SPDX-License-Identifier: BSD-2-Clause

// Package native provides RDMA devices of the Linux kernel without rdma-core.
//
// A [Backend] takes the place of libibverbs: it opens /dev/infiniband/uverbsN and sends the commands that libibverbs
// would send, with the structures and numbers of generated/uapi. Work requests go into queues that the kernel maps into
// the process, or that the process shares with the device. [Open] returns a Backend for [rdma.OpenOn]; programs need no
// C library and can be linked statically.
//
// Data flows in three steps: a function of the Backend checks C's structures of generated/ibv and translates them to a
// command; a driver package below rdma/native/internal adds its private part and sends it through a [Kernel], the seam
// to system calls; afterwards, the driver's queues post, poll and arm.
//
// Drivers: rxe (Soft-RoCE), siw (Soft-iWARP), mlx5 in programs that import rdma/native/mlx5 or rdma/mlx5, and EFA in
// those that import rdma/native/efa or rdma/efa. No adapter has run mlx5's and EFA's: they were tested over an emulated
// kernel and compared with libmlx5 and libefa. Devices of other drivers are listed, but opening one fails with an error
// that names rdma-core as the alternative.
//
// It takes the place of librdmacm, too: functions of identifiers and event channels write commands to
// /dev/infiniband/rdma_cm, translate the kernel's events, and move queue pairs as librdmacm does.
//
// Not supported yet: work queues, actions of flow rules, and routes of ibacm. Functions for these return
// ErrNotSupported. Extended queue pairs of rxe build FLUSH and ATOMIC_WRITE if the kernel executes them; siw has none.
// Only mlx5 has XRC, also in connections, dynamic connections, raw packets, device memory, flow rules with counters,
// and thread and parent domains.
//
// rxe and siw have been tested on Linux 6.1, 6.12 and 7.
package native

// Prefix begins the names by which rdma.Open opens devices of this package: "native:rxe0".
const Prefix = "native:"

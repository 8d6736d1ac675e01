// SPDX-License-Identifier: BSD-2-Clause

// Package soft implements RDMA devices in software: a backend of the generated wrappers, in pure Go. Its devices belong
// to the process and form a fabric. They follow the verbs specification, including its checks and errors.
//
// [Default] is the fabric that all packages of a process share, with the devices soft0 and soft1. [New] creates
// another, with other devices, faults, or a virtual clock. A Fabric is a [runtime.Backend]: libibverbs.From{Backend:
// fabric} lists its devices, and their objects are used like C's.
//
// [Named] opens devices by names like "soft@192.0.2.1", which rdma.Open and GOVERBS_DEVICE also accept. They and all
// other devices with DeviceOptions.Wire speak RoCE v2 over UDP to other processes and hosts; see docs/wire.md.
//
// The fabric also implements librdmacm: librdmacm.From{Backend: fabric}. Its addresses are those of the fabric's
// devices, and its ports belong to the fabric: without a wire, they are invisible outside the process and on other
// fabrics. On [Default], 127.0.0.1 and ::1 are soft0, and the host name "soft1" resolves to 127.0.0.2. An ID without a
// source address takes the address of its peer, so both are on the same device; for two devices, bind to 127.0.0.1 and
// connect to 127.0.0.2. Without a wire, resolving an address of no device fails at once with EHOSTUNREACH; on Linux it
// times out first.
//
// [Faults], SetLink, RemoveDevice and MoveAddress cause failures. A connection manager message without an answer fails
// after the same time as on Linux, or as set by Options.CMResponse. AF_IB addresses return ENODEV, as on any RoCE
// device. rsockets are not implemented. If another ID has a port, for all addresses or for one of them, Linux returns
// EADDRNOTAVAIL and this backend EADDRINUSE; AddressOwner names the owner.
//
// The device accesses registered memory by address, as hardware does, so keep the memory until its region is
// deregistered. As with hardware, the race detector does not see these accesses.
//
// A device supports queue pairs of type RC, UC, UD and XRC, and with package rdma/mlx5 dynamic connections, whose packets
// have a format of this package; all operations of [ibv.WROpcode] except TSO and driver opcodes; shared receive queues,
// including XRC and tag matching; memory windows; multicast; extended completion queues with event moderation; buffers;
// regions of memory, device memory and dma-bufs, on-demand paging and null regions; DMA handles; and asynchronous events.
// It does not support flow steering and its counters, work queues and indirection tables, raw packets, rate limits, path
// migration and completion counters.
//
// Raw packet queue pairs, work queues and indirection tables receive from an Ethernet port, which the device does not
// have: with Wire, its packets go through a UDP socket. The allocators of a parent domain are never called: queue
// entries hold pointers that Go's collector has to see, so they cannot be in the program's memory.
//
// A dma-buf region maps its descriptor, so any mappable file will do, such as a memfd. Buffers and device memory are
// memfds, which ExportDMABuf returns.
//
// rdma.ImportDeviceOn opens a duplicate of an open device's descriptor (cmd_fd) in the same process, with its existing
// objects. An object can be destroyed through any of its handles; the other handles can then only be unimported.
// Importing a device of another process fails with EOPNOTSUPP.
//
// On systems other than Linux, signals within the process replace descriptors for waiting, memory is not checked when
// it is registered, XRC domains cannot be named by files, and no memory is backed by a file. This code compiles there
// but is untested; the waiting is tested on Linux with the build tag goverbs_nofd.
package soft

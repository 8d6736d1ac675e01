// SPDX-License-Identifier: BSD-2-Clause

// Package soft has verbs without hardware: a backend of the generated wrappers, in Go alone. Its devices live in the
// process and form a fabric. They follow the specification of the verbs: they refuse what is not allowed, and fail as a
// device would.
//
// [Default] is the fabric that the whole process shares, with the devices soft0 and soft1. [New] creates another one,
// with other devices, with faults, or with a virtual clock. A Fabric is a [runtime.Backend]: libibverbs.From{Backend:
// fabric} lists its devices, and their objects are used like those of C.
//
// [Named] opens devices that speak RoCE v2 over UDP to other processes and hosts, by names like "soft@192.0.2.1", which
// rdma.Open and GOVERBS_DEVICE take, too. All devices with DeviceOptions.Wire do; docs/wire.md is about them.
//
// The connection manager works as well: librdmacm.From{Backend: fabric}. Its addresses are those of the fabric's
// devices, each of which has one owner, and its ports belong to the fabric: without a wire, nothing outside the
// process, or on another fabric, sees them. 127.0.0.1 and ::1 are soft0 of [Default]; "soft1" is a name of 127.0.0.2.
// An ID without a source address takes the address of its peer, so both are on the same device; for two devices, bind
// to 127.0.0.1 and connect to 127.0.0.2. Without a wire, an address that no device has fails at once with EHOSTUNREACH;
// Linux waits for an answer first.
// [Faults], SetLink, RemoveDevice and MoveAddress cause failures. A message without an answer fails after the time that
// Linux takes, or after Options.CMResponse. AF_IB addresses return ENODEV, as on any RoCE device, and there are no
// rsockets. If another ID has a port, for all addresses or for one of them, Linux returns EADDRNOTAVAIL and this device
// EADDRINUSE; AddressOwner names the owner.
//
// The device reads and writes registered memory by address, as hardware does, so keep the memory until its region is
// gone. The race detector does not see these accesses, as it does not see those of a device.
//
// A device has queue pairs of type RC, UC, UD and XRC; all operations of [ibv.WROpcode] except TSO and those of
// drivers; shared receive queues, plain, of XRC and with tag matching; memory windows; multicast; extended completion
// queues, and moderation of their events; buffers; regions of memory, of device memory, of files, with on-demand
// paging, and null regions; DMA handles; and asynchronous events. It lacks flow steering and its counters, work queues
// and indirection tables, raw packets, rate limits, path migration and completion counters.
//
// Queue pairs of raw packets, and the work queues and tables that spread packets over them, take what arrives at an
// Ethernet port. There is none: packets of a device with Wire go through a UDP socket of the kernel. Allocators of a
// parent domain are never called: entries of queues hold pointers that Go's collector has to see, so they cannot lie in
// memory of the program's.
//
// A region of a dma-buf is a mapping of its descriptor: any file of memory will do, such as a memfd. The memory of a
// buffer and of a device's memory is a memfd, which ExportDMABuf gives.
//
// A duplicate of an open device's descriptor (cmd_fd) opens it again in the same process, with the objects that are
// there: rdma.ImportDeviceOn. Any handle of an object destroys it; the others can then be unimported, and no more. A
// device of another process cannot be imported, which is EOPNOTSUPP.
//
// Systems other than Linux have no descriptors to wait for, but goroutines are woken in another way; memory is not
// checked when it is registered, files name no XRC domains, and no memory is of a file. This compiles and was not run
// there. The code with signals was run on Linux, with the build tag goverbs_nofd.
package soft

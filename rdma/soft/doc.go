// Package soft is verbs without hardware: a backend of the generated wrappers, in Go alone. Its devices are in the process, form a
// fabric, and do what the specification of the verbs says: what is not allowed is refused, what fails fails as it would on a device.
//
// [Default] is the fabric that everyone shares, with the devices soft0 and soft1. [New] makes one of its own, with other devices, with
// faults, or with a clock that stands still. A Fabric is a [runtime.Backend]: libibverbs.From{Backend: fabric} lists its devices, and
// all that comes of them is called as an object of C's is.
//
// The connection manager is there, too: librdmacm.From{Backend: fabric}, and what comes of it. Its addresses are those of the fabric's
// devices, each of which has one owner, and its ports are the fabric's own: nothing of it is seen outside of the process, or on another
// fabric. 127.0.0.1 is soft0 of [Default], as ::1 is; "soft1" is a name of 127.0.0.2. Who connects without an own address starts from the
// very address that it looks for, so from the same device; who binds to 127.0.0.1 and connects to 127.0.0.2 has two. What goes wrong is as
// asked for by [Faults], SetLink, RemoveDevice and MoveAddress; what is not answered ends after the time that Linux takes, or
// Options.CMResponse. Addresses of AF_IB are ENODEV, as on any device that is RoCE, and there are no rsockets. Of a port that somebody has for
// all addresses, or for one of them, Linux says EADDRNOTAVAIL to who wants it otherwise, and this EADDRINUSE; AddressOwner says who has it.
//
// Registered memory is read and written by address, as a device does it: who registers memory keeps it until the region is gone. The
// race detector does not see these accesses, as it does not see those of a device.
//
// A device has queue pairs of RC, UC, UD and XRC, all operations of [ibv.WROpcode] but TSO and those of drivers, plain, XRC and tag
// matching shared receive queues, windows, multicast, extended completion queues, buffers, regions of memory, of device memory, on demand
// and of nothing, and asynchronous events. It has no flow steering and its counters, no work queues or indirection tables, no raw packets, no
// moderation of completions, no memory of files (dma-buf), no rate limits, no path migration, no counters of completions, no handles of
// DMA, and no import: what a process has open is its own.
//
// On systems other than Linux there are no descriptors to wait for, but a [runtime.Signal] in their place, memory is not looked at when it is registered,
// and files name no XRC domains. That compiles, and was not run there; the first of these runs on Linux with the build tag goverbs_nofd.
package soft

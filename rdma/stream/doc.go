// SPDX-License-Identifier: BSD-2-Clause

// Package stream has connections over RDMA that are net.Conn, for any protocol over TCP. [Dial] and [Listen] return
// them; [Dialer] and [ListenConfig] have options. [Config] has those of both: its Protocol makes connections rsockets,
// for programs in C.
//
// A [Conn] has a reader, a writer, and what the program has lent to the device. Each side writes into a ring of memory
// of the other side. The queue pairs of a device complete into one queue, which the goroutines that wait for it poll in
// turn, and the events of all connections come from one event channel: an idle connection has neither a goroutine nor a
// descriptor.
//
// Everything here also runs on the software devices of package soft, without an adapter, a kernel module or another
// process: see "Which library" in the documentation of package cm.
//
// # Addresses
//
// Addresses are usually IP addresses: RoCE, iWARP and IPoIB have them. [ListenConfig.ListenIB] and [Dialer.DialIB] take
// AF_IB addresses of InfiniBand, which [cm.IBAddr] documents.
package stream

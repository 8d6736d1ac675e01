// SPDX-License-Identifier: BSD-2-Clause

// Package stream provides connections over RDMA that implement net.Conn, for any protocol over TCP. [Dial] and [Listen]
// create them; [Dialer] and [ListenConfig] have options, and [Config] has those of both. Its Protocol selects rsockets,
// for C programs as peers.
//
// A [Conn] has a reader, a writer, and memory that the program has lent to the device. Each side writes into a ring in
// the memory of the other side. The queue pairs of a device share a completion queue, which one of the waiting
// goroutines polls for all, and the events of all connections come from one event channel: an idle connection has
// neither a goroutine nor a descriptor.
//
// All of this also runs on the software devices of package soft, without an adapter or a kernel module: see "Which
// library" in the documentation of package cm.
//
// # Addresses
//
// Addresses are usually IP addresses, which RoCE, iWARP and IPoIB have. [ListenConfig.ListenIB] and [Dialer.DialIB]
// take AF_IB addresses of InfiniBand: see [cm.IBAddr].
package stream

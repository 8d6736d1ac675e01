// SPDX-License-Identifier: BSD-2-Clause

// Package stream provides connections over RDMA that implement net.Conn, for any protocol that runs over TCP. Create
// them with [Dial] and [Listen], or with the options of [Dialer] and [ListenConfig], which share [Config].
// [Config].Protocol selects rsockets, for peers written in C.
//
// Each side of a [Conn] writes into a ring in the other side's memory. The queue pairs of a device share completion
// queues, and one of the waiting goroutines polls a queue for all connections on it. The events of many connections
// come from one event channel. An idle connection therefore needs neither a goroutine nor a descriptor.
//
// Connections also run on the software devices of package soft, without an adapter or a kernel module: see "Which
// library" in the documentation of package cm.
//
// # Addresses
//
// RoCE, iWARP and IPoIB use IP addresses. [ListenConfig.ListenIB] and [Dialer.DialIB] accept InfiniBand's AF_IB
// addresses: see [cm.IBAddr].
package stream

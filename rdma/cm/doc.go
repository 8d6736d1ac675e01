// SPDX-License-Identifier: BSD-2-Clause

// Package cm is the RDMA connection manager: librdmacm over the objects of package rdma. Package stream has connections
// that are net.Conn.
//
// # Which library
//
// Everything here also runs on the software devices of package soft, without an adapter, a kernel module or another
// process. The environment variable GOVERBS_DEVICE chooses: with soft0, or another device of soft.Default, programs
// that name no backend use that fabric; with soft@192.0.2.1, they use a device at that address of this machine, which
// reaches other processes and hosts (soft.Named); otherwise they use the native library. Which of the fabric's devices
// is used depends on the addresses, as on hardware. Programs with more rights than their user ignore the variable.
//
// A program chooses by itself with the functions whose names end in On, or the Config of package stream. All take a
// fabric of package soft; runtime.Native, which is the native library whatever the variable says; or nil, which leaves
// the choice to the variable. Device.Info of package rdma has the backend of a device that was opened by its name. The
// rules for private data below are the same.
//
// # Identifiers
//
// An [ID] is librdmacm's rdma_cm_id: one end of a connection, a listener, or a datagram endpoint. An ID of [CreateID]
// is synchronous: its methods wait for the outcome, or until their context ends. An ID of [EventChannel.CreateID] is
// asynchronous: its methods start an operation, and [EventChannel.Event] returns its outcome. [ID.Migrate] turns one
// into the other.
//
// An ID has a device after it is bound or its address is resolved. [ID.Device] returns it as an [rdma.Device], and
// [ID.CreateQP] creates an [rdma.QP]. Both work like any others, with accounting, waits and drains, and the rules of
// their lifetimes. All IDs on a device share it: close its objects before the last of these IDs.
//
// # Private data
//
// Connect, Accept and Reject carry as many bytes as rdmacm.PrivateDataLimit says. They do not carry a length: over
// InfiniBand and RoCE the receiver gets a message's whole field (56 bytes with a request, 196 with an answer, 148 with
// a rejection), the sender's bytes first and then zeros. Put a length into the data if you need it. With AF_IB
// addresses, a request's field has 92 bytes.
//
// # Addresses
//
// Addresses are usually IP addresses, netip.AddrPort here: RoCE, iWARP and IPoIB have them. [IBAddr] is an AF_IB
// address of InfiniBand, for [ID.BindIB], [ID.ResolveIBAddr], [ID.JoinIB], [Hints] and package stream; its
// documentation says what Linux supports.
package cm

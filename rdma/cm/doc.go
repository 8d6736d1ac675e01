// SPDX-License-Identifier: BSD-2-Clause

// Package cm is the RDMA connection manager: librdmacm on the objects of package rdma. For connections that are
// net.Conn, see package stream.
//
// # Which library
//
// Everything in this package also runs on the software devices of package soft, without an adapter or a kernel module.
// The environment variable GOVERBS_DEVICE selects the library. With soft0, or another device of soft.Default, programs
// that name no backend use that fabric. With soft@192.0.2.1, they use a device at that address of this host, which
// reaches other processes and hosts (soft.Named). With native:rxe0, or another name of package native, they use the
// kernel without rdma-core. Otherwise they use the kernel's connection manager: by rdma-core if
// its libibverbs can be opened, and else by package native (see rdma.KernelBackend). As on hardware, addresses select
// the device. Programs with elevated privileges ignore the variable.
//
// Functions whose names end in On, and the Config of package stream, take the backend as an argument: a fabric of
// package soft; package native's; runtime.Native, which is rdma-core; or nil, which leaves the choice to the
// environment. Device.Info of package rdma has the backend of a device that was opened by name. The rules for private
// data below are the same for all backends.
//
// # Identifiers
//
// An [ID] is librdmacm's rdma_cm_id: one end of a connection, a listener, or a datagram endpoint. An ID of [CreateID]
// is synchronous: its methods wait for the outcome, or until their context ends. An ID of [EventChannel.CreateID] is
// asynchronous: its methods start an operation, and [EventChannel.Event] returns the outcome. [ID.Migrate] converts
// between the two.
//
// An ID has a device after it is bound or its address is resolved. [ID.Device] returns it as an [rdma.Device], and
// [ID.CreateQP] creates an [rdma.QP]. They have the same accounting, waits, drains and lifetimes as other objects of
// package rdma. All IDs on a device share it: close its objects before the last of these IDs.
//
// # Private data
//
// The private data of Connect, Accept and Reject is limited by rdmacm.PrivateDataLimit. It has no length: over
// InfiniBand and RoCE the receiver gets the complete field of the message (56 bytes with a request, 196 with a reply,
// 148 with a rejection), padded with zeros. Put a length into the data if you need it. With AF_IB addresses, a
// request's field has 92 bytes.
//
// # Addresses
//
// Addresses are usually IP addresses (netip.AddrPort), which RoCE, iWARP and IPoIB have. [IBAddr] is an AF_IB address
// of InfiniBand, for [ID.BindIB], [ID.ResolveIBAddr], [ID.JoinIB], [Hints] and package stream; see its documentation
// for Linux's support.
package cm

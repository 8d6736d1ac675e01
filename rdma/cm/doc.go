// SPDX-License-Identifier: BSD-2-Clause

// Package cm is the RDMA connection manager: librdmacm on the objects of package rdma. For connections that are
// net.Conn, see package stream.
//
// # Which library
//
// Everything in this package also runs on the software devices of package soft, without an adapter or a kernel module.
// The environment variable GOVERBS_DEVICE selects the library for programs that name no backend:
//
//   - soft0, or another device of soft.Default: that fabric.
//   - soft@192.0.2.1: a software device at that address of this host, which can reach other processes and hosts
//     (soft.Named).
//   - native:rxe0, or another device of package native: the kernel's connection manager, through package native. This
//     is also the default if libibverbs cannot be opened.
//   - otherwise: the kernel's connection manager, through rdma-core (see rdma.KernelBackend).
//
// As on hardware, addresses select the device. Programs with elevated privileges ignore the variable.
//
// Functions whose names end in On, and the Config of package stream, have a backend parameter: a fabric of package
// soft; the backend of package native; runtime.Native for rdma-core; or nil, which uses the environment. For a device
// that was opened by name, Device.Info of package rdma returns the backend. The rules for private data below are the
// same for all backends.
//
// # Identifiers
//
// An [ID] is librdmacm's rdma_cm_id: one end of a connection, a listener, or a datagram endpoint. An ID of [CreateID]
// is synchronous: its methods wait for the outcome, or until their context ends. An ID of [EventChannel.CreateID] is
// asynchronous: its methods start an operation, and [EventChannel.Event] returns the outcome. [ID.Migrate] converts
// between the two.
//
// An ID has a device after it is bound or its address is resolved. [ID.Device] returns it as an [rdma.Device], and
// [ID.CreateQP] creates an [rdma.QP]. Both follow the rules of package rdma for accounting, waits, drains and
// lifetimes. All IDs on a device share it: close its objects before the last of these IDs.
//
// # Private data
//
// rdmacm.PrivateDataLimit limits the private data of Connect, Accept and Reject. Its length is not transmitted: over
// InfiniBand and RoCE, the receiver gets the complete field of the message, padded with zeros (56 bytes in a request,
// 196 in a reply, 148 in a rejection). Encode the length in the data if you need it. With AF_IB addresses, a request's
// field has 92 bytes.
//
// # Addresses
//
// RoCE, iWARP and IPoIB use IP addresses (netip.AddrPort). [IBAddr] is an AF_IB address of InfiniBand, for [ID.BindIB],
// [ID.ResolveIBAddr], [ID.JoinIB], [Hints] and package stream; its documentation describes Linux's support.
package cm

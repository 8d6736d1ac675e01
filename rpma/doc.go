// SPDX-License-Identifier: BSD-2-Clause

// Package rpma provides remote memory access in librpma's model: a program reads and writes memory of a peer, flushes
// written data until the peer's processors see it or until it survives a power failure, and sends messages. It is
// wire-compatible with librpma and does not use it.
//
// A [Peer] belongs to a device. It registers memory ([MR]) and sends the region's descriptor of 21 bytes to the other
// side, which parses it to a [RemoteMR]. One side listens ([Endpoint]) and the other requests a connection
// ([ConnRequest]); both get a [Conn]. Its methods Read, Write, WriteWithImm, AtomicWrite, Flush, Send, SendWithImm and
// Recv start one operation each, which completes in a completion queue ([CQ]) of the connection. [Batch] starts several
// operations together, [Async] lets goroutines wait for their operations, and [Stripe] distributes large transfers over
// several connections.
//
// # General rules
//
// Any number of goroutines may use an object at once, unless its documentation states otherwise. Operations do not
// block and do not allocate. Methods that block take a context, which replaces librpma's descriptors.
//
// The device owns the memory of an operation until the operation has completed, or until its connection is closed.
// Operations of a connection complete in order: a completion covers all earlier operations, including those without a
// completion.
//
// Objects can be closed in any order. Close fails while other objects need this one; the error names them and matches
// rdma.ErrInUse. A second Close does nothing. Methods of a closed object fail with rdma.ErrClosed.
//
// Sizes and offsets are in bytes. Numbers are in host byte order, including immediate data, which this package sends in
// network order, like librpma. librpma's completions leave it in network order, so C programs call ntohl; Go programs
// call [Immediate].
//
// # Errors
//
// Errors are of type *[Error]. They match the [Code] that librpma returns in the same situation, and errors of package
// rdma: rdma.ErrNotSupported, rdma.ErrClosed, errnos. [CodeOf] returns the code of any error.
//
// # Flush
//
// A flush for visibility completes when the peer's processors see all data that was written to the flushed range before
// it, over the same connection. A flush for persistence completes when that data survives a power failure of the peer.
// It needs the usage [FlushPersistent] of the region and the peer's configuration ([PeerConfig]), which the program
// must transfer and pass to [Conn.ApplyRemotePeerConfig].
//
// A device with native flush of both kinds flushes natively; on other devices, a flush is an RDMA READ of 8 bytes of
// the range into a private region. When the side with the memory registers the region, it grants the access that its
// own device would need. If the two sides choose differently, the flush fails with a remote access error, and
// [Conn.CompletionErr] suggests a fix.
package rpma

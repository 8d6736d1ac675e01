// SPDX-License-Identifier: BSD-2-Clause

// Package rpma provides remote memory access in librpma's model: a program reads and writes a peer's memory, flushes
// written data until the peer's processors see it or until it survives a power failure, and sends messages. It is
// wire-compatible with librpma, but does not use it.
//
// A [Peer] belongs to a device. It registers memory ([MR]). The program sends the region's descriptor of 21 bytes to
// the other side, which parses it to a [RemoteMR]. One side listens ([Endpoint]) and the other requests a connection
// ([ConnRequest]); both get a [Conn]. Its methods Read, Write, WriteWithImm, AtomicWrite, Flush, Send, SendWithImm and
// Recv start one operation each, which completes in one of the connection's completion queues ([CQ]). [Batch] starts
// several operations together, [Async] lets goroutines wait for their operations, and [Stripe] distributes large
// transfers over several connections.
// several connections.
//
// # General rules
//
// Objects are safe for concurrent use, unless their documentation states otherwise. Operations neither block nor
// allocate. Methods that block have a context, which replaces librpma's descriptors.
//
// The device owns the memory of an operation until the operation has completed, or until its connection is closed.
// Operations of a connection complete in order: a completion covers all earlier operations, including those without a
// completion.
//
// Objects can be closed in any order that their dependencies permit: Close fails while other objects need this one,
// with an error that names them and matches rdma.ErrInUse. A second Close does nothing. Methods of a closed object fail
// with rdma.ErrClosed.
//
// Sizes and offsets are in bytes. Numbers are in host byte order, including immediate data. librpma's completions
// contain immediate data in network order, for which C programs call ntohl; Go programs call [Immediate].
//
// # Errors
//
// Errors are of type *[Error]. They match the [Code] that librpma returns in the same situation, and errors of package
// rdma: rdma.ErrNotSupported, rdma.ErrClosed, errnos. [CodeOf] returns the code of any error.
//
// # Flush
//
// A flush for visibility completes when the peer's processors see all data that was written to the flushed range
// before, over the same connection. A flush for persistence completes when that data survives a power failure of the
// peer. It requires that the region has the usage [FlushPersistent], and that the program transfers the peer's
// configuration ([PeerConfig]) and passes it to [Conn.ApplyRemotePeerConfig].
//
// A device that supports both kinds of native flush flushes natively. On other devices, a flush is an RDMA READ of 8
// bytes of the range into a private region. A region grants the access that a flush from its own kind of device would
// need. If the two sides use different kinds, the flush fails with a remote access error, and [Conn.CompletionErr]
// suggests a fix.
package rpma

// SPDX-License-Identifier: BSD-2-Clause

// Package rpma is remote memory access in the model of librpma: a program reads and writes memory of a peer, flushes
// what it wrote until the peer's processors see it or until it survives a loss of power, and sends messages. It speaks
// to peers that use librpma, and needs nothing of that library.
//
// A [Peer] belongs to a device. It registers memory ([MR]); the descriptor of a region is 21 bytes, which the other
// side turns into a [RemoteMR]. One side listens ([Endpoint]) and the other asks for a connection ([ConnRequest]); both
// get a [Conn], whose methods Read, Write, WriteWithImm, AtomicWrite, Flush, Send, SendWithImm and Recv start an
// operation each. Its completion is in a completion queue ([CQ]) of the connection. [Batch] starts several operations
// at once, [Async] lets a goroutine wait for its own operation, and [Stripe] spreads a large transfer over several
// connections.
//
// # General rules
//
// Any number of goroutines may use an object at once, unless its documentation says otherwise. Operations do not block
// and do not allocate. A method that blocks takes a context: descriptors to poll, which librpma has, are not needed.
//
// Memory of an operation belongs to the device until the operation has completed, or until its connection is closed.
// RDMA completes operations of one connection in their order: a completion says that all operations before it, also
// those without a completion, have ended.
//
// Objects can be closed in any order. If others need one, Close does nothing, names them, and errors.Is finds
// rdma.ErrInUse. A second Close does nothing. Methods of a closed object fail with rdma.ErrClosed.
//
// Sizes and offsets are in bytes. Numbers are in host byte order, also immediate data: this package puts it in network
// order on the wire, as librpma does. librpma leaves it in network order in a completion, so a C program calls ntohl
// there; a Go program calls [Immediate].
//
// # Errors
//
// Errors are of type *[Error]. errors.Is finds the [Code] that librpma returns in the same situation, and what package
// rdma would say: rdma.ErrNotSupported, rdma.ErrClosed, an errno. [CodeOf] returns the code of any error.
//
// # Flush
//
// A flush for visibility completes when the peer's processors see all data that was written before it to the flushed
// range over the same connection. A flush for persistence completes when that data survives a loss of power of the
// peer. It needs two promises of the peer: the usage of the region ([FlushPersistent]) and the peer's configuration
// ([PeerConfig]), which the program carries over and gives to [Conn.ApplyRemotePeerConfig].
//
// A device that has native flush of both kinds flushes natively; with any other, a flush is an RDMA READ of 8 bytes of
// the range into a private region. The side with the memory grants what the flush needs by the same rule when it
// registers the region. If the two sides choose differently, the flush fails with a remote access error, and
// [Conn.CompletionErr] says what to change.
package rpma

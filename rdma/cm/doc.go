// Package cm is the RDMA connection manager: what librdmacm has, over objects of package rdma, and stream connections on top.
//
// # Streams
//
// [Dial] and [Listen] give connections that are net.Conn, for whatever runs over TCP. [Config] has what can be chosen.
//
// Everything here runs on the software devices of package soft, too, with no adapter, no kernel module and no other process: Config.Backend, and
// the functions whose names end in On, say so. What is told of private data below holds there as well.
//
// # Identifiers
//
// An [ID] is what librdmacm calls rdma_cm_id: one end of a connection, a listener, or a datagram endpoint. The ID of [CreateID] is
// synchronous: its methods wait for the outcome, until their context ends. The ID of [EventChannel.CreateID] is asynchronous: its methods
// begin something, and [EventChannel.Event] tells what became of it. [ID.Migrate] makes one into the other.
//
// An ID has a device once it is bound or its address is resolved. [ID.Device] gives it as an [rdma.Device], and [ID.CreateQP] makes an
// [rdma.QP]: both work as any other, with accounting, waits and drains, and the rules of their lifetimes. The device belongs to all IDs that
// are on it: what was made from it has to be closed before the last of them.
//
// # Private data
//
// Connect, Accept and Reject carry up to so many bytes as rdmacm.PrivateDataLimit says. They do not carry a length: over InfiniBand and
// RoCE the receiver gets a message's whole field (56 bytes with a request, 196 with an answer, 148 with a rejection), the sender's bytes in
// front and zeros behind. So put a length into the data where it matters. With addresses of AF_IB a request's field has 92 bytes.
//
// # Addresses
//
// Mostly they are IP's, netip.AddrPort here: RoCE, iWARP and IPoIB have them. [IBAddr] is one of InfiniBand's own, AF_IB, for [ID.BindIB],
// [ID.ResolveIBAddr], [ID.JoinIB], [Hints], [Config.ListenIB] and [Config.DialIB]; it says what Linux grants where.
package cm

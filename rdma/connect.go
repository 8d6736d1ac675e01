// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
)

// Special values of connection attributes.
const (
	TimeoutInfinite  = 0 // Timeout: wait forever for an acknowledgement, so that a dead peer is not detected
	RNRRetryInfinite = 7 // RNRRetry: retry forever while the peer has no receive posted
)

// Defaults of [QP.ConnectAttr].
const (
	DefaultHopLimit    = 64
	DefaultTimeout     = 14 // 4.096 µs · 2^14: 67 ms
	DefaultRetryCount  = 7
	DefaultRNRRetry    = 6  // finite, so that a peer without receives is detected
	DefaultMinRNRTimer = 12 // 0.64 ms
	DefaultReadAtomic  = 16 // reads and atomic operations in flight; fewer if a device supports fewer
	DefaultQKey        = 0x11111111
)

// Endpoint is the information that a peer needs to connect to a queue pair. Peers can exchange their endpoints by any
// means, for example over TCP. An Endpoint marshals to text, and therefore to a JSON string. Numbers are in host byte
// order.
type Endpoint struct {
	QPNum      uint32 // 24 bits
	PSN        uint32 // 24 bits: number of the first packet that the queue pair sends
	GID        ibv.GID
	LID        uint16  // 0 on Ethernet
	MTU        ibv.MTU // of the port; 0: unknown
	ReadAtomic uint8   // maximum reads and atomic operations that the peer may have in flight; 0: unknown, treated as 1
	QKey       uint32  // of a UD queue pair
}

// String returns the text of MarshalText: "qpn=0x12 psn=0x3456 gid=::ffff:10.0.0.1 lid=0 mtu=1024 rd_atomic=16
// qkey=0x0".
func (e Endpoint) String() string {
	return fmt.Sprintf("qpn=%#x psn=%#x gid=%s lid=%d mtu=%d rd_atomic=%d qkey=%#x", e.QPNum, e.PSN, e.GID,
		e.LID, MTUBytes(e.MTU), e.ReadAtomic, e.QKey)
}

// MarshalText returns the endpoint as text.
func (e Endpoint) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText parses the text of MarshalText. It ignores unknown fields. Missing fields become 0, but qpn is
// required.
func (e *Endpoint) UnmarshalText(text []byte) error {
	var own Endpoint
	hasQPN := false
	for _, field := range strings.Fields(string(text)) {
		name, value, _ := strings.Cut(field, "=")
		bits := map[string]int{"qpn": 24, "psn": 24, "lid": 16, "mtu": 16, "rd_atomic": 8, "qkey": 32}[name]
		if name == "gid" {
			a, err := netip.ParseAddr(value)
			if err != nil {
				return fmt.Errorf("rdma: endpoint: gid: %w", err)
			}
			*own.GID.Raw() = a.As16()
			continue
		}
		if bits == 0 {
			continue
		}
		v, err := strconv.ParseUint(value, 0, bits)
		if err != nil {
			return fmt.Errorf("rdma: endpoint: %s: %w", name, err)
		}
		switch name {
		case "qpn":
			own.QPNum, hasQPN = uint32(v), true
		case "psn":
			own.PSN = uint32(v)
		case "lid":
			own.LID = uint16(v)
		case "mtu":
			for own.MTU = 0; MTUBytes(own.MTU) != int(v); own.MTU++ { // 0: unknown
				if own.MTU > ibv.MTU_4096 {
					return fmt.Errorf("rdma: endpoint: invalid mtu %d; valid values are 0, 256, 512, 1024, 2048 and 4096", v)
				}
			}
		case "rd_atomic":
			own.ReadAtomic = uint8(v)
		case "qkey":
			own.QKey = uint32(v)
		}
	}
	if !hasQPN {
		return fmt.Errorf("rdma: endpoint: %q has no qpn", text)
	}
	*e = own
	return nil
}

// localEndpoint holds the port, the GID and the PSN that the queue pair uses.
type localEndpoint struct {
	decided  bool
	port     uint8
	attr     ibv.PortAttr
	source   GIDQuery // selects the GID; looked up before each use, because its index may change
	hasGID   bool
	endpoint Endpoint
}

// sourceOf returns a query that selects an entry again. It includes the type, the interface and the VLAN, because
// several entries may have the same GID.
func sourceOf(e ibv.GIDEntry, on GIDQuery) GIDQuery {
	return GIDQuery{Port: uint8(e.PortNum), GID: &e.GID, Type: &e.GIDType, Interface: on.Interface, VLAN: on.VLAN}
}

// sourceIndex returns the current index of the queue pair's GID in the port's table.
func (q *QP) sourceIndex(l *localEndpoint) (uint8, error) {
	e, err := q.device.FindGID(l.source)
	if err == nil && e.GIDIndex > math.MaxUint8 {
		err = invalid("ibv_query_gid_table", q.device.name, "GID %v has index %d; a path can use indexes up to 255",
			l.source, e.GIDIndex)
	}
	return uint8(e.GIDIndex), err
}

// Endpoint returns the information that a peer needs to connect. The first call chooses the first active port, the GID
// that [Device.FindGID] prefers, and a random PSN. Use EndpointOn for another GID or port.
func (q *QP) Endpoint() (Endpoint, error) { return q.EndpointOn(GIDQuery{}) }

// EndpointOn is like Endpoint, with the port and the GID that the query selects. It also chooses a new PSN, which
// invalidates endpoints that peers already have. If no GID matches, the error is ENOENT.
func (q *QP) EndpointOn(on GIDQuery) (Endpoint, error) {
	if err := q.use("Endpoint"); err != nil {
		return Endpoint{}, err
	}
	defer q.done()
	q.changes.Lock()
	defer q.changes.Unlock()
	if q.local.decided && on == (GIDQuery{}) {
		return q.local.endpoint, nil
	}
	if err := q.decide(on); err != nil {
		return Endpoint{}, err
	}
	return q.local.endpoint, nil
}

// ensureLocal returns the local endpoint, and chooses it first if necessary.
func (q *QP) ensureLocal() (localEndpoint, error) {
	if err := q.use("Endpoint"); err != nil {
		return localEndpoint{}, err
	}
	defer q.done()
	q.changes.Lock()
	defer q.changes.Unlock()
	if q.local.decided {
		return q.local, nil
	}
	err := q.decide(GIDQuery{})
	return q.local, err
}

// decide chooses the port, the GID and the PSN of the local endpoint.
func (q *QP) decide(on GIDQuery) error {
	d := q.device
	l := localEndpoint{decided: true, port: on.Port}
	if l.port == 0 && on == (GIDQuery{}) {
		port, _, err := d.ActivePort()
		if err != nil {
			return err
		}
		l.port, on.Port = port, port
	}
	entry, err := d.FindGID(on)
	if err == nil {
		l.port, l.hasGID = uint8(entry.PortNum), true
		l.source = sourceOf(entry, on)
	}
	if l.port == 0 {
		return err
	}
	port, err2 := d.Port(l.port)
	if err2 != nil {
		return err2
	}
	if err != nil && (port.LinkLayer == ibv.LINK_LAYER_ETHERNET || on != (GIDQuery{Port: l.port})) {
		return err
	}
	l.attr = *port
	caps, err := d.Query()
	if err != nil {
		return err
	}
	var b [4]byte
	rand.Read(b[:]) // unpredictable for attackers
	psn := binary.NativeEndian.Uint32(b[:]) & 0xffffff
	l.endpoint = Endpoint{QPNum: q.Num(), PSN: psn, GID: entry.GID, LID: port.LID, MTU: port.ActiveMTU,
		ReadAtomic: uint8(min(caps.MaxQPRdAtom, DefaultReadAtomic))}
	if q.transitionType() == ibv.QPT_UD {
		l.endpoint.QKey = DefaultQKey
	}
	q.local = l
	return nil
}

// Connect connects the queue pair to a peer: it moves it from RESET to RTS with the attributes of ConnectAttr. Requests
// of a UD queue pair name their peers instead; see [QP.Path].
//
// The kernel may block until it has resolved the peer's Ethernet address; ETIMEDOUT means that there was no answer.
// Connect does not contact the peer, which must connect as well. Connecting to a queue pair that does not exist
// succeeds, as in C; the first request then completes with RETRY_EXC_ERR (status 12). If Connect fails, it moves the
// queue pair back to RESET, so that Connect can be called again.
//
// C: ibv_modify_qp
//
// Man: ibv_modify_qp(3)
func (q *QP) Connect(peer Endpoint) error {
	attr, err := q.ConnectAttr(peer)
	if err != nil {
		return err
	}
	return q.ConnectWith(attr)
}

// ConnectAttr returns the attributes that Connect uses. Change them and pass them to ConnectWith. They contain the PSNs
// of both endpoints, the smaller of both MTUs, and the defaults of this package. The traffic class is DSCP << 2. The
// access flags contain every remote access; memory regions restrict access further. MaxRdAtomic is the smaller of the
// limits of both endpoints, or 1 if the peer's is unknown. If it is 0, a checked queue rejects reads and atomic
// operations.
//
// Man: ibv_modify_qp(3)
func (q *QP) ConnectAttr(peer Endpoint) (*ibv.QPAttr, error) {
	local, err := q.ensureLocal()
	if err != nil {
		return nil, err
	}
	own := local.endpoint
	path, err := q.Path(peer)
	if err != nil {
		return nil, err
	}
	caps, err := q.device.Query()
	if err != nil {
		return nil, err
	}
	mtu := min(own.MTU, peer.MTU)
	if peer.MTU == 0 {
		mtu = own.MTU
	}
	return &ibv.QPAttr{
		PathMTU: mtu, QKey: own.QKey, RQPSN: peer.PSN, SQPSN: own.PSN, DestQPNum: peer.QPNum,
		QPAccessFlags: q.access(caps),
		AHAttr:        path, PortNum: local.port,
		MaxRdAtomic:     uint8(min(int32(max(peer.ReadAtomic, 1)), caps.MaxQPInitRdAtom, DefaultReadAtomic)),
		MaxDestRdAtomic: own.ReadAtomic,
		MinRNRTimer:     DefaultMinRNRTimer, Timeout: DefaultTimeout, RetryCnt: DefaultRetryCount,
		RNRRetry: DefaultRNRRetry,
	}, nil
}

// access returns all remote access flags that the queue pair's type and the device support.
func (q *QP) access(caps *ibv.DeviceAttr) (flags ibv.AccessFlags) {
	use := ibv.AccessOfQP(q.Type())
	if refusal.Refused(use.Validity) {
		return 0
	}
	for _, flag := range []ibv.AccessFlags{ibv.ACCESS_REMOTE_WRITE, ibv.ACCESS_REMOTE_READ, ibv.ACCESS_REMOTE_ATOMIC} {
		if flag == ibv.ACCESS_REMOTE_ATOMIC && caps.AtomicCap == ibv.ATOMIC_NONE {
			continue
		}
		if a := ibv.AccessFlag(use.Use, flag).Answer; a == ibv.AnswerYes || a == ibv.AnswerNeedsCapability {
			flags |= flag
		}
	}
	return flags
}

// Path returns the path to a peer, for an address handle or for queue pair attributes, with a hop limit of
// [DefaultHopLimit]. It looks up the index of the queue pair's GID in each call. If that GID no longer exists, the
// error is ENOENT.
func (q *QP) Path(peer Endpoint) (ibv.AHAttr, error) {
	l, err := q.ensureLocal()
	if err != nil {
		return ibv.AHAttr{}, err
	}
	attr := ibv.AHAttr{PortNum: l.port, DLID: peer.LID}
	if l.attr.LinkLayer != ibv.LINK_LAYER_ETHERNET && peer.LID != 0 {
		return attr, nil
	}
	if !l.hasGID {
		return attr,
			invalid("ibv_query_gid_table", q.device.name,
				"port %d has no GID, and the peer's endpoint has no LID", l.port)
	}
	index, err := q.sourceIndex(&l)
	if err != nil {
		return attr, err
	}
	attr.IsGlobal = 1
	attr.GRH = ibv.GlobalRoute{DGID: peer.GID, SGIDIndex: index, HopLimit: DefaultHopLimit}
	return attr, nil
}

// ConnectWith is like Connect, with the caller's attributes. It ignores attributes that the queue pair's type does not
// have. It sets the state and the masks itself.
//
// C: ibv_modify_qp
//
// Man: ibv_modify_qp(3)
func (q *QP) ConnectWith(attr *ibv.QPAttr) error {
	if attr == nil {
		return noAttributes("ibv_modify_qp", q.name)
	}
	if err := q.use("ibv_modify_qp"); err != nil {
		return err
	}
	defer q.done()
	q.changes.Lock()
	defer q.changes.Unlock()
	if q.state() != ibv.QPS_RESET {
		return invalid("ibv_modify_qp", q.name, "the queue pair is in %s; Connect requires RESET: move it there with "+
			"Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE), or create a new queue pair", q.realState())
	}
	err := q.connect(*attr)
	if err != nil && q.state() != ibv.QPS_RESET {
		q.modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE) // ignore this error, and return the first
	}
	return err
}

// realState returns the state on the device, for error texts. It differs from State after the device has moved the
// queue pair to ERR.
func (q *QP) realState() string {
	known := q.state()
	attr, _, err := q.Query(ibv.QP_STATE)
	if err != nil || attr.QPState == known {
		return refusal.ShortState(known)
	}
	return fmt.Sprintf("%s on the device, because a request failed; the program moved it to %s",
		refusal.ShortState(attr.QPState), refusal.ShortState(known))
}

// connect is ConnectWith, but leaves the queue pair in its state after a failure. The caller holds changes.
func (q *QP) connect(own ibv.QPAttr) error {
	for _, to := range []ibv.QPState{ibv.QPS_INIT, ibv.QPS_RTR, ibv.QPS_RTS} {
		required, _, ok := ibv.ModifyQPMask(q.transitionType(), q.state(), to)
		if !ok {
			return invalid("ibv_modify_qp", q.name, "Connect does not support type %s", refusal.ShortName(q.kind))
		}
		own.QPState = to
		if err := q.modify(&own, required|ibv.QP_STATE); err != nil {
			return err
		}
	}
	return nil
}

// Ready moves a queue pair without a fixed peer to RTS: one of type UD or RAW_PACKET, or of EFA's reliable datagrams.
// To send datagrams to it, peers need the number and the Q_Key in its Endpoint.
//
// C: ibv_modify_qp
//
// Man: ibv_modify_qp(3)
func (q *QP) Ready() error {
	local, err := q.ensureLocal()
	if err != nil {
		return err
	}
	switch q.kind {
	case ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_XRC_SEND, ibv.QPT_XRC_RECV:
		return q.cannot("ibv_modify_qp",
			fmt.Sprintf("a queue pair of type %s needs a peer: use Connect", refusal.ShortName(q.kind)))
	}
	return q.ConnectWith(&ibv.QPAttr{PortNum: local.port, QKey: local.endpoint.QKey, SQPSN: local.endpoint.PSN})
}

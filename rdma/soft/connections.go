// SPDX-License-Identifier: BSD-2-Clause

package soft

import (
	"fmt"
	"net/netip"
	"strings"
	"text/tabwriter"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Connection is the state of a connected RC, UC or XRC queue pair when Connections was called. Numbers of queue pairs
// and of packets (PSN) have 24 bits, in host byte order.
type Connection struct {
	Device          string
	Type            ibv.QPType
	State           ibv.QPState // RTR or later
	QPN, PeerQPN    uint32
	Local, Peer     netip.Addr // addresses in packets, or of both devices of one fabric
	MTU             ibv.MTU    // path MTU
	NextPSN         uint32     // of the next packet to send
	ExpectedPSN     uint32     // of the next packet to receive
	InFlight        uint32     // unacknowledged packets
	Window          uint32     // maximum packets in flight now; 0 without packets
	Queued          uint32     // outstanding send requests
	SentAgain       uint64     // packets retransmitted since the queue pair was connected
	CMID            uint32     // communication ID, or 0 without the connection manager
	CMLocal, CMPeer netip.AddrPort
}

// Connections is a list of connections that String formats as a table.
type Connections []Connection

// Connections returns the current connections of the fabric's devices, sorted by device and number. It briefly blocks
// traffic.
func (f *Fabric) Connections() (all Connections) {
	if f.fabric == nil {
		return nil
	}
	for _, c := range f.fabric.Connections() {
		all = append(all, Connection(c))
	}
	return all
}

// String returns a table with a header line and a line for each connection. Ends are printed as addresses with queue
// pair numbers.
func (all Connections) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DEVICE\tTYPE\tSTATE\tLOCAL\tPEER\tMTU\tNEXT PSN\tEXPECTED\tIN FLIGHT\tQUEUED\tSENT AGAIN\tCM")
	for i := range all {
		c := &all[i]
		ports := "-"
		if c.CMID != 0 {
			ports = fmt.Sprintf("%v %v", c.CMLocal, c.CMPeer)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%v %#x\t%v %#x\t%d\t%#x\t%#x\t%d/%d\t%d\t%d\t%s\n", c.Device,
			strings.TrimPrefix(c.Type.String(), "IBV_QPT_"), strings.TrimPrefix(c.State.String(), "IBV_QPS_"),
			c.Local, c.QPN, c.Peer, c.PeerQPN, 128<<c.MTU, c.NextPSN, c.ExpectedPSN, c.InFlight, c.Window, c.Queued,
			c.SentAgain, ports)
	}
	w.Flush()
	return b.String()
}

// SPDX-License-Identifier: BSD-2-Clause

package resources

import (
	"errors"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
)

// listing describes how the kernel lists one kind: the request, the attributes of the list and of an entry, and that of
// an object's number.
type listing struct {
	kind                string
	command             uapi.RDMANLDevCommand
	list, entry, number uapi.RDMANLDevAttr
}

var listings = []listing{
	{"qp", uapi.RDMA_NLDEV_CMD_RES_QP_GET, uapi.RDMA_NLDEV_ATTR_RES_QP, uapi.RDMA_NLDEV_ATTR_RES_QP_ENTRY,
		uapi.RDMA_NLDEV_ATTR_RES_LQPN},
	{"mr", uapi.RDMA_NLDEV_CMD_RES_MR_GET, uapi.RDMA_NLDEV_ATTR_RES_MR, uapi.RDMA_NLDEV_ATTR_RES_MR_ENTRY,
		uapi.RDMA_NLDEV_ATTR_RES_MRN},
	{"cq", uapi.RDMA_NLDEV_CMD_RES_CQ_GET, uapi.RDMA_NLDEV_ATTR_RES_CQ, uapi.RDMA_NLDEV_ATTR_RES_CQ_ENTRY,
		uapi.RDMA_NLDEV_ATTR_RES_CQN},
	{"pd", uapi.RDMA_NLDEV_CMD_RES_PD_GET, uapi.RDMA_NLDEV_ATTR_RES_PD, uapi.RDMA_NLDEV_ATTR_RES_PD_ENTRY,
		uapi.RDMA_NLDEV_ATTR_RES_PDN},
	{"cm_id", uapi.RDMA_NLDEV_CMD_RES_CM_ID_GET, uapi.RDMA_NLDEV_ATTR_RES_CM_ID, uapi.RDMA_NLDEV_ATTR_RES_CM_ID_ENTRY,
		uapi.RDMA_NLDEV_ATTR_RES_CM_IDN},
	{"srq", uapi.RDMA_NLDEV_CMD_RES_SRQ_GET, uapi.RDMA_NLDEV_ATTR_RES_SRQ, uapi.RDMA_NLDEV_ATTR_RES_SRQ_ENTRY,
		uapi.RDMA_NLDEV_ATTR_RES_SRQN},
	{"ctx", uapi.RDMA_NLDEV_CMD_RES_CTX_GET, uapi.RDMA_NLDEV_ATTR_RES_CTX, uapi.RDMA_NLDEV_ATTR_RES_CTX_ENTRY,
		uapi.RDMA_NLDEV_ATTR_RES_CTXN},
}

// objects adds the objects, and device attributes from netlink.
func (h *Host) objects(s *Snapshot) {
	if h.Ask == nil {
		return
	}
	devices, err := h.Ask(uapi.RDMA_NLDEV_CMD_GET)
	if err != nil {
		if len(s.Devices) > 0 {
			s.note("no RDMA objects from the kernel: %v; it needs ib_core, newer than "+
				"Linux 4.17", err)
		}
		return
	}
	for _, message := range devices {
		a := attributes(message)
		d := s.device(a.text(uapi.RDMA_NLDEV_ATTR_DEV_NAME))
		d.index = a.number32(uapi.RDMA_NLDEV_ATTR_DEV_INDEX)
		if d.Firmware == "" {
			d.Firmware = a.text(uapi.RDMA_NLDEV_ATTR_FW_VERSION)
		}
	}
	summaries, err := h.Ask(uapi.RDMA_NLDEV_CMD_RES_GET)
	if err != nil {
		s.note("no object counts from the kernel: %v", err)
	}
	for _, message := range summaries {
		a := attributes(message)
		d := s.device(a.text(uapi.RDMA_NLDEV_ATTR_DEV_NAME))
		a.find(uapi.RDMA_NLDEV_ATTR_RES_SUMMARY).each(uapi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY, func(e attributes) {
			name := e.text(uapi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME)
			d.Objects[name] = e.number(uapi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR)
		})
	}
	for i := range s.Devices {
		d := &s.Devices[i]
		d.listed = map[string]uint64{}
		for _, l := range listings {
			messages, err := h.Ask(l.command, d.index)
			switch {
			case err == nil:
				d.listed[l.kind] = 0
			case !unsupported(err):
				s.note("no list of %s objects on %s from the kernel: %v", l.kind, d.Name, err)
			}
			for _, message := range messages {
				attributes(message).find(l.list).each(l.entry, func(e attributes) {
					d.listed[l.kind]++
					s.Objects = append(s.Objects, object(l, d.Name, e))
				})
			}
		}
		h.statistics(d)
		h.bound(s, d)
	}
}

// unsupported reports whether an error means that the kernel does not support a kind.
func unsupported(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP)
}

// statistics adds driver counters, also for ports whose files this namespace cannot read.
func (h *Host) statistics(d *Device) {
	for i := range d.Ports {
		p := &d.Ports[i]
		messages, err := h.Ask(uapi.RDMA_NLDEV_CMD_STAT_GET, d.index, uint32(p.Port))
		if err != nil {
			continue // few drivers have them
		}
		for _, message := range messages {
			attributes(message).counted(p.Hardware)
		}
	}
}

// counted returns counters by name.
func (a attributes) counted(to map[string]uint64) {
	a.find(uapi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS).each(uapi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY, func(e attributes) {
		if name := e.text(uapi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME); name != "" {
			to[name] = e.number(uapi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE)
		}
	})
}

// modes names the modes of bound counters.
var modes = map[uint32]string{uint32(uapi.RDMA_COUNTER_MODE_AUTO): "auto",
	uint32(uapi.RDMA_COUNTER_MODE_MANUAL): "manual"}

// bound adds counters bound to queue pairs.
func (h *Host) bound(s *Snapshot, d *Device) {
	messages, err := h.Ask(uapi.RDMA_NLDEV_CMD_STAT_GET, d.index, 0, uint32(uapi.RDMA_NLDEV_ATTR_RES_QP))
	if err != nil {
		return // few drivers have them
	}
	for _, message := range messages {
		all := attributes(message).find(uapi.RDMA_NLDEV_ATTR_STAT_COUNTER)
		all.each(uapi.RDMA_NLDEV_ATTR_STAT_COUNTER_ENTRY, func(e attributes) {
			b := Bound{Device: d.Name, Port: e.number32(uapi.RDMA_NLDEV_ATTR_PORT_INDEX),
				ID:   e.number32(uapi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID),
				Mode: modes[e.number32(uapi.RDMA_NLDEV_ATTR_STAT_MODE)],
				QPs:  []uint32{}, Hardware: map[string]uint64{}}
			e.find(uapi.RDMA_NLDEV_ATTR_RES_QP).each(uapi.RDMA_NLDEV_ATTR_RES_QP_ENTRY, func(q attributes) {
				b.QPs = append(b.QPs, q.number32(uapi.RDMA_NLDEV_ATTR_RES_LQPN))
			})
			e.counted(b.Hardware)
			s.Bound = append(s.Bound, b)
		})
	}
}

// Names without a constant in a header: kernel queue pair types and states of CM IDs.
var (
	kernelTypes = map[uint32]string{0: "SMI", 1: "GSI"}
	cmStates    = []string{"IDLE", "ADDR_QUERY", "ADDR_RESOLVED", "ROUTE_QUERY", "ROUTE_RESOLVED", "CONNECT",
		"DISCONNECT", "ADDR_BOUND", "LISTEN", "DEVICE_REMOVAL", "DESTROYING"}
)

func typeName(n uint32) string {
	if name, ok := kernelTypes[n]; ok {
		return name
	}
	return strings.TrimPrefix(uapi.IBUverbsQPType(n).String(), "IB_UVERBS_QPT_")
}

// object decodes an entry of a list.
func object(l listing, device string, e attributes) Object {
	o := Object{
		Kind: l.kind, Device: device,
		Port:   e.number32(uapi.RDMA_NLDEV_ATTR_PORT_INDEX),
		Number: e.number32(l.number),
		Thread: e.number32(uapi.RDMA_NLDEV_ATTR_RES_PID),
		Peer:   e.number32(uapi.RDMA_NLDEV_ATTR_RES_RQPN),
		RQPSN:  e.number32(uapi.RDMA_NLDEV_ATTR_RES_RQ_PSN),
		SQPSN:  e.number32(uapi.RDMA_NLDEV_ATTR_RES_SQ_PSN),
		Bytes:  e.number(uapi.RDMA_NLDEV_ATTR_RES_MRLEN),
		Room:   e.number32(uapi.RDMA_NLDEV_ATTR_RES_CQE),
		Users:  e.number(uapi.RDMA_NLDEV_ATTR_RES_USECNT),
	}
	if l.kind != "pd" {
		o.PD = e.number32(uapi.RDMA_NLDEV_ATTR_RES_PDN)
	}
	if l.kind != "ctx" {
		o.Ctx = e.number32(uapi.RDMA_NLDEV_ATTR_RES_CTXN)
	} else {
		o.Ctx = o.Number
	}
	switch module := e.text(uapi.RDMA_NLDEV_ATTR_RES_KERN_NAME); {
	case module != "":
		o.Owner = "[" + module + "]"
	case o.Thread == 0:
		o.Owner = Elsewhere
	}
	kind, state := e.number32(uapi.RDMA_NLDEV_ATTR_RES_TYPE), e.number32(uapi.RDMA_NLDEV_ATTR_RES_STATE)
	switch l.kind {
	case "qp":
		o.Type, o.State = typeName(kind), strings.TrimPrefix(ibv.QPState(state).String(), "IBV_QPS_")
	case "cm_id":
		if space := uapi.RDMAUCMPortSpace(e.number32(uapi.RDMA_NLDEV_ATTR_RES_PS)); space != 0 {
			o.Type = strings.TrimPrefix(space.String(), "RDMA_PS_")
		}
		o.QPN = e.number32(uapi.RDMA_NLDEV_ATTR_RES_LQPN)
		o.Local = e.address(uapi.RDMA_NLDEV_ATTR_RES_SRC_ADDR)
		o.Remote = e.address(uapi.RDMA_NLDEV_ATTR_RES_DST_ADDR)
		if int(state) < len(cmStates) {
			o.State = cmStates[state]
		}
	case "srq":
		o.Type = strings.TrimPrefix(ibv.SRQType(kind).String(), "IBV_SRQT_")
	}
	return o
}

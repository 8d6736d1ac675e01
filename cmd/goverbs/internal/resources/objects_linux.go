// SPDX-License-Identifier: BSD-2-Clause

package resources

import (
	"errors"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
)

// listing is how the kernel lists one kind: the request, the attributes that hold the list and an entry of it, and the
// number of an object.
type listing struct {
	kind                         string
	command, list, entry, number int
}

var listings = []listing{
	{"qp", commandQPs, attrQP, attrQPEntry, attrLQPN}, {"mr", commandMRs, attrMR, attrMREntry, attrMRN},
	{"cq", commandCQs, attrCQ, attrCQEntry, attrCQN}, {"pd", commandPDs, attrPD, attrPDEntry, attrPDN},
	{"cm_id", commandCMIDs, attrCMID, attrCMIDEntry, attrCMIDN},
	{"srq", commandSRQs, attrSRQ, attrSRQEntry, attrSRQN},
	{"ctx", commandContexts, attrContext, attrContextEntry, attrContextN},
}

// objects adds what netlink knows: more about devices, and the objects.
func (h *Host) objects(s *Snapshot) {
	if h.Ask == nil {
		return
	}
	devices, err := h.Ask(commandGet)
	if err != nil {
		if len(s.Devices) > 0 {
			s.note("the kernel does not say which objects programs have: %v; ib_core has to be loaded, and newer than "+
				"Linux 4.17", err)
		}
		return
	}
	for _, message := range devices {
		a := attributes(message)
		d := s.device(a.text(attrDevName))
		d.index = a.number32(attrDevIndex)
		if d.Firmware == "" {
			d.Firmware = a.text(attrFirmware)
		}
	}
	summaries, err := h.Ask(commandObjects)
	if err != nil {
		s.note("the kernel does not count objects: %v", err)
	}
	for _, message := range summaries {
		a := attributes(message)
		d := s.device(a.text(attrDevName))
		a.find(attrSummary).each(attrSummaryEntry, func(e attributes) {
			d.Objects[e.text(attrSummaryName)] = e.number(attrSummaryCount)
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
			case !unknown(err):
				s.note("the kernel does not list objects of kind %s on %s: %v", l.kind, d.Name, err)
			}
			for _, message := range messages {
				attributes(message).find(l.list).each(l.entry, func(e attributes) {
					d.listed[l.kind]++
					s.Objects = append(s.Objects, object(l, d.Name, e))
				})
			}
		}
		h.statistics(d)
	}
}

// unknown says if an error is that of a kernel which has not heard of a kind.
func unknown(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP)
}

// statistics adds what drivers count, which files of ports that this namespace may not see do not have, for example.
func (h *Host) statistics(d *Device) {
	for i := range d.Ports {
		p := &d.Ports[i]
		messages, err := h.Ask(commandCounters, d.index, uint32(p.Port))
		if err != nil {
			continue // most drivers have none
		}
		for _, message := range messages {
			attributes(message).find(attrCounters).each(attrCounter, func(e attributes) {
				if name := e.text(attrCounterName); name != "" {
					p.Hardware[name] = e.number(attrCounterValue)
				}
			})
		}
	}
}

// Names that only the kernel has for types of queue pairs, states of CM identifiers, and port spaces.
var (
	kernelTypes = map[uint32]string{0: "SMI", 1: "GSI", 9: "XRC_INI", 10: "XRC_TGT"}
	cmStates    = []string{"IDLE", "ADDR_QUERY", "ADDR_RESOLVED", "ROUTE_QUERY", "ROUTE_RESOLVED", "CONNECT",
		"DISCONNECT", "ADDR_BOUND", "LISTEN", "DEVICE_REMOVAL", "DESTROYING"}
	portSpaces = map[uint32]string{0x0002: "IPOIB", 0x0106: "TCP", 0x0111: "UDP", 0x013f: "IB"}
)

func typeName(n uint32) string {
	if name, ok := kernelTypes[n]; ok {
		return name
	}
	return strings.TrimPrefix(ibv.QPType(n).String(), "IBV_QPT_")
}

// object reads an entry of a list.
func object(l listing, device string, e attributes) Object {
	o := Object{Kind: l.kind, Device: device, Port: e.number32(attrPort), Number: e.number32(l.number),
		Thread: e.number32(attrPID), Peer: e.number32(attrRQPN),
		RQPSN: e.number32(attrRQPSN), SQPSN: e.number32(attrSQPSN), Bytes: e.number(attrMRLength),
		Room: e.number32(attrCQE), Users: e.number(attrUsers)}
	if l.kind != "pd" {
		o.PD = e.number32(attrPDN)
	}
	if l.kind != "ctx" {
		o.Ctx = e.number32(attrContextN)
	} else {
		o.Ctx = o.Number
	}
	switch module := e.text(attrKernelName); {
	case module != "":
		o.Owner = "[" + printable(module) + "]"
	case o.Thread == 0:
		o.Owner = Elsewhere
	}
	kind, state := e.number32(attrType), e.number32(attrState)
	switch l.kind {
	case "qp":
		o.Type, o.State = typeName(kind), strings.TrimPrefix(ibv.QPState(state).String(), "IBV_QPS_")
	case "cm_id":
		o.Type, o.QPN = portSpaces[e.number32(attrPortSpace)], e.number32(attrLQPN)
		o.Local, o.Remote = e.address(attrSource), e.address(attrDestination)
		if int(state) < len(cmStates) {
			o.State = cmStates[state]
		}
	case "srq":
		o.Type = strings.TrimPrefix(ibv.SRQType(kind).String(), "IBV_SRQT_")
	}
	return o
}

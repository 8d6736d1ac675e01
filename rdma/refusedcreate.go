package rdma

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/wq"
)

// What a device did not like about what was to be created, found out when it has refused.

// hasNotSoMuch says whether an error may mean that the device has not so much of something. A software device is out of memory when that was
// asked of it, and is not to be asked for less then.
func (d *Device) hasNotSoMuch(err error) bool {
	return errors.Is(err, einval) || errors.Is(err, enomem) && d.info.Backend == nil
}

// lacksCQ says which completion queue a queue pair has to have and does not, or nothing: C reads it without a look. table: it receives
// through a table of work queues.
func (in *qpInit) lacksCQ(table bool) string {
	switch {
	case in.kind == ibv.QPT_XRC_RECV, in.kind == ibv.QPT_DRIVER: // of the latter the provider knows what it needs
	case in.sendCQ == 0 && (!table || in.cap.MaxSendWR > 0):
		return "SendCQ must be set, even for a queue pair that only receives"
	case in.recvCQ == 0 && !table && in.kind != ibv.QPT_XRC_SEND:
		return "RecvCQ must be set, even for a queue pair that only sends"
	}
	return ""
}

// missesDomain says which domain a queue pair mostly has to have and does not, or nothing.
func missesDomain(kind ibv.QPType, pd, xrcd bool) string {
	switch {
	case kind == ibv.QPT_XRC_RECV && !xrcd:
		return "a queue pair of type XRC_RECV is created by Device.CreateQPEx, with its domain (XRCD, IBV_QP_INIT_ATTR_XRCD)"
	case kind != ibv.QPT_XRC_RECV && !pd:
		return "its protection domain is not set (PD, IBV_QP_INIT_ATTR_PD)"
	}
	return ""
}

// explainCreate says why the device does not create a queue pair, as far as that can be found out.
func (q *QP) explainCreate(in *qpInit, create func(ibv.QPCap) (*ibv.QP, ibv.QPCap, error), err error) error {
	if !strings.HasPrefix(in.kind.String(), "IBV_QPT_") {
		return explain("", "", fmt.Sprintf("%v is not a known queue pair type", in.kind), err)
	}
	if in.misses != "" && errors.Is(err, einval) {
		return explain("", "", in.misses, err)
	}
	switch {
	case errors.Is(err, eopnotsupp):
		return explain("", "", fmt.Sprintf("the device does not have queue pairs of type %s, or not with these attributes", wq.ShortName(in.kind)), err)
	case q.device.hasNotSoMuch(err):
		return explain("", "", q.capReason(in, create), err)
	}
	return err
}

// capReason says which capacity the device does not grant, or nothing. Where its limits do not tell, it is asked for less of one after the other.
func (q *QP) capReason(in *qpInit, create func(ibv.QPCap) (*ibv.QP, ibv.QPCap, error)) string {
	device := new(ibv.DeviceAttr)
	if libibverbs.QueryDevice(q.device.c, device) != nil {
		return ""
	}
	wrs, sges := int64(device.MaxQPWR), int64(device.MaxSGE)
	less := in.cap
	limits := []struct {
		member *uint32
		name   string
		most   int64 // 0: not told
		of     string
		little uint32
	}{
		{&less.MaxSendWR, "max_send_wr", wrs, "max_qp_wr", 1},
		{&less.MaxRecvWR, "max_recv_wr", wrs, "max_qp_wr", 1},
		{&less.MaxSendSGE, "max_send_sge", sges, "max_sge", 1},
		{&less.MaxRecvSGE, "max_recv_sge", sges, "max_sge", 1},
		{&less.MaxInlineData, "max_inline_data", 0, "", 0},
	}
	for _, l := range limits {
		if l.most > 0 && int64(*l.member) > l.most {
			return fmt.Sprintf("%s is %d, which is more than the device's %d (%s)", l.name, *l.member, l.most, l.of)
		}
	}
	for _, l := range limits {
		asked := *l.member
		if asked <= l.little {
			continue
		}
		*l.member = l.little
		c, _, err := create(less)
		*l.member = asked
		if err == nil {
			q.endC(c)
			return fmt.Sprintf("%s is %d, which is more than the device grants; it grants %d", l.name, asked, l.little)
		}
	}
	return ""
}

// explainCQ says what is wrong with a number of completions or a vector, if that is it.
func explainCQ(d *Device, entries, vector int, err error) error {
	attr := new(ibv.DeviceAttr)
	switch {
	case vector < 0 || vector >= max(d.vectors, 1):
		return explain("", "", fmt.Sprintf("there is no completion vector %d; the device has %d, from 0 on", vector, d.vectors), err)
	case libibverbs.QueryDevice(d.c, attr) == nil && entries > int(attr.MaxCQE):
		return explain("", "", fmt.Sprintf("%d completions are more than the device's %d (max_cqe)", entries, attr.MaxCQE), err)
	}
	return err
}

// explainSRQ says which number of a shared receive queue the device does not have, if that is it.
func explainSRQ(d *Device, asked *ibv.SRQAttr, err error) error {
	attr := new(ibv.DeviceAttr)
	switch {
	case libibverbs.QueryDevice(d.c, attr) != nil:
	case asked.MaxWR == 0 || int64(asked.MaxWR) > int64(attr.MaxSRQWR):
		return explain("", "", fmt.Sprintf("max_wr is %d; it must be from 1 to the device's %d (max_srq_wr)", asked.MaxWR, attr.MaxSRQWR), err)
	case int64(asked.MaxSGE) > int64(attr.MaxSRQSGE):
		return explain("", "", fmt.Sprintf("max_sge is %d, which is more than the device's %d (max_srq_sge)", asked.MaxSGE, attr.MaxSRQSGE), err)
	}
	return err
}

// missesOfSRQ says what a shared receive queue has to have and does not, or nothing.
func missesOfSRQ(attr *ibv.SRQInitAttrEx) string {
	kind, needs := ibv.SRQT_BASIC, ibv.SRQ_INIT_ATTR_PD
	if attr.CompMask&ibv.SRQ_INIT_ATTR_TYPE != 0 {
		kind = attr.SRQType
	}
	switch kind {
	case ibv.SRQT_BASIC:
	case ibv.SRQT_XRC:
		needs |= ibv.SRQ_INIT_ATTR_XRCD | ibv.SRQ_INIT_ATTR_CQ
	case ibv.SRQT_TM:
		needs |= ibv.SRQ_INIT_ATTR_CQ | ibv.SRQ_INIT_ATTR_TM
	default:
		return fmt.Sprintf("%v is not a known type of shared receive queue", kind)
	}
	if misses := needs &^ attr.CompMask; misses != 0 {
		return fmt.Sprintf("one of type %v needs %v as well (comp_mask)", kind, misses)
	}
	return ""
}

// explainModify says why the queue was not changed.
func (q *SRQ) explainModify(attr *ibv.SRQAttr, mask ibv.SRQAttrMask, err error) error {
	const verb = "ibv_modify_srq"
	if !errors.Is(err, einval) {
		return wrap(verb, q.name, err)
	}
	if size := q.size.Load(); mask&ibv.SRQ_LIMIT != 0 && attr.SRQLimit > size {
		return explain(verb, q.name, fmt.Sprintf("srq_limit is %d, and the queue holds %d", attr.SRQLimit, size), err)
	}
	if mask&ibv.SRQ_MAX_WR != 0 {
		asked := *attr
		asked.MaxSGE = 0 // which is not changed
		err = explainSRQ(q.device, &asked, err)
	}
	return wrap(verb, q.name, err)
}

// explainDM says that there is not so much memory of the device, if that is it.
func explainDM(d *Device, length uint64, err error) error {
	attr := new(ibv.DeviceAttrEx)
	if err == nil || libibverbs.QueryDeviceEx(d.c, nil, attr) != nil || length > 0 && length <= attr.MaxDMSize {
		return err
	}
	return explain("", "", fmt.Sprintf("%d bytes; it must be from 1 to the device's %d (max_dm_size)", length, attr.MaxDMSize), err)
}

// explainMR says what the device did not like about a region, if that is it.
func explainMR(use ibv.AccessUse, access ibv.AccessFlags, r *Region, err error) error {
	switch {
	case !errors.Is(err, einval) && !errors.Is(err, eopnotsupp):
		return err
	case r.Length == 0:
		return explain("", "", "the memory is empty", err)
	case r.Address+r.Length < r.Address && r.Length != ^uint64(0):
		return explain("", "", fmt.Sprintf("%d bytes at %#x end beyond the last address", r.Length, r.Address), err)
	}
	return explain("", "", doubtfulAccess(use, access), err)
}

// doubtfulAccess names the flag that not every device takes, or nothing.
func doubtfulAccess(use ibv.AccessUse, access ibv.AccessFlags) string {
	v, flag := ibv.CheckAccess(use, access)
	switch {
	case flag == 0 || v.Answer == ibv.AnswerYes:
		return ""
	case strings.HasPrefix(flag.String(), "IBV_"):
		return fmt.Sprintf("access %v: the device may not have %v", access, flag)
	}
	return fmt.Sprintf("access %v: %v is not a known flag", access, flag)
}

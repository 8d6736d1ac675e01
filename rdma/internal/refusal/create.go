// SPDX-License-Identifier: BSD-2-Clause

// Package refusal determines why a device rejected a request. It queries the device's limits, and tries smaller
// requests. It is called only after a device has rejected something.
package refusal

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// Device is a device that rejected a request. The caller keeps it open.
type Device struct {
	C        *ibv.Context
	Software bool               // belongs to a software backend
	Vectors  int                // number of completion vectors
	Lacks    func(error) string // returns the reason if package native does not support something, or ""
}

// NotSoMuch reports whether an error may mean that the request exceeds a limit of the device. A software device runs
// out of memory only if a test requested that; then smaller requests are not tried.
func (d Device) NotSoMuch(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOMEM) && !d.Software
}

// MissingCQ returns text about a completion queue that is required but not set, or "". C would dereference it. table
// means that the queue pair receives through a table of work queues.
func MissingCQ(attr *ibv.QPInitAttr, table bool) string {
	switch {
	// For DRIVER, the provider checks.
	case attr.QPType == ibv.QPT_XRC_RECV, attr.QPType == ibv.QPT_DRIVER:
	case attr.SendCQ == 0 && (!table || attr.Cap.MaxSendWR > 0):
		return "SendCQ must be set, even for a queue pair that only receives"
	case attr.RecvCQ == 0 && !table && attr.QPType != ibv.QPT_XRC_SEND:
		return "RecvCQ must be set, even for a queue pair that only sends"
	}
	return ""
}

// MissingDomain returns text about a domain that is required but not set, or "".
func MissingDomain(kind ibv.QPType, pd, xrcd bool) string {
	switch {
	case kind == ibv.QPT_XRC_RECV && !xrcd:
		return "a queue pair of type XRC_RECV is created by Device.CreateQPEx, with its domain (XRCD, " +
			"IBV_QP_INIT_ATTR_XRCD)"
	case kind != ibv.QPT_XRC_RECV && !pd:
		return "the protection domain is not set (PD, IBV_QP_INIT_ATTR_PD)"
	}
	return ""
}

// QP adds the reason, if it can be found, to an error of creating a queue pair. misses is text about a missing
// attribute, or "". try creates a queue pair with other capacities, destroys it, and reports whether it succeeded.
func (d Device) QP(kind ibv.QPType, misses string, asked ibv.QPCap, try func(ibv.QPCap) bool, err error) error {
	if !strings.HasPrefix(kind.String(), "IBV_QPT_") {
		return explain(fmt.Sprintf("unknown queue pair type %v", kind), err)
	}
	if misses != "" && errors.Is(err, syscall.EINVAL) {
		return explain(misses, err)
	}
	switch {
	case errors.Is(err, syscall.EOPNOTSUPP):
		if reason := d.Lacks(err); reason != "" {
			return explain(reason, err)
		}
		const reason = "the device does not support queue pairs of type %s, at least with these attributes"
		return explain(fmt.Sprintf(reason, ShortName(kind)), err)
	case d.NotSoMuch(err):
		return explain(d.capReason(asked, try), err)
	}
	return err
}

// explain adds a reason to an error.
func explain(reason string, err error) error { return verberr.Explain("", "", reason, err) }

// capReason returns text about the capacity that exceeds the device's maximum, or "". If no known limit explains the
// error, it tries smaller values.
func (d Device) capReason(asked ibv.QPCap, try func(ibv.QPCap) bool) string {
	device := new(ibv.DeviceAttr)
	if libibverbs.QueryDevice(d.C, device) != nil {
		return ""
	}
	wrs, sges := int64(device.MaxQPWR), int64(device.MaxSGE)
	less := asked
	limits := []struct {
		member *uint32
		name   string
		most   int64 // 0: unknown
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
			return fmt.Sprintf("%s is %d, which exceeds the device's %d (%s)", l.name, *l.member, l.most, l.of)
		}
	}
	for _, l := range limits {
		asked := *l.member
		if asked <= l.little {
			continue
		}
		grants := func(n uint32) bool {
			*l.member = n
			return try(less)
		}
		if grants(l.little) {
			return fmt.Sprintf("%s is %d, but the device grants only %d", l.name, asked,
				largest(l.little, asked, grants))
		}
		*l.member = asked
	}
	return ""
}

// largest returns the largest number that succeeds, between one that succeeds and one that fails.
func largest(granted, refused uint32, grants func(uint32) bool) uint32 {
	for refused-granted > 1 {
		if middle := granted + (refused-granted)/2; grants(middle) {
			granted = middle
		} else {
			refused = middle
		}
	}
	return granted
}

// CQ adds the reason to an error of creating a completion queue.
func (d Device) CQ(entries, vector int, err error) error {
	attr := new(ibv.DeviceAttr)
	switch {
	case vector < 0 || vector >= max(d.Vectors, 1):
		return explain(fmt.Sprintf("no completion vector %d; the device has %d, starting at 0", vector, d.Vectors),
			err)
	case libibverbs.QueryDevice(d.C, attr) == nil && entries > int(attr.MaxCQE):
		return explain(fmt.Sprintf("%d completions exceed the device's %d (max_cqe)", entries, attr.MaxCQE), err)
	}
	return err
}

// SRQ adds the exceeded limit to an error of creating a shared receive queue.
func (d Device) SRQ(asked *ibv.SRQAttr, err error) error {
	attr := new(ibv.DeviceAttr)
	switch {
	case libibverbs.QueryDevice(d.C, attr) != nil:
	case asked.MaxWR == 0 || int64(asked.MaxWR) > int64(attr.MaxSRQWR):
		const reason = "max_wr is %d; it must be from 1 to the device's %d (max_srq_wr)"
		return explain(fmt.Sprintf(reason, asked.MaxWR, attr.MaxSRQWR), err)
	case int64(asked.MaxSGE) > int64(attr.MaxSRQSGE):
		const reason = "max_sge is %d, which exceeds the device's %d (max_srq_sge)"
		return explain(fmt.Sprintf(reason, asked.MaxSGE, attr.MaxSRQSGE), err)
	}
	return err
}

// MissingOfSRQ returns text about a required attribute of a shared receive queue that is not set, or "".
func MissingOfSRQ(attr *ibv.SRQInitAttrEx) string {
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
		return fmt.Sprintf("unknown shared receive queue type %v", kind)
	}
	if misses := needs &^ attr.CompMask; misses != 0 {
		return fmt.Sprintf("type %v also needs %v (comp_mask)", kind, misses)
	}
	return ""
}

// ModifySRQ adds the reason to an error of modifying a shared receive queue with room for that many receives.
func (d Device) ModifySRQ(attr *ibv.SRQAttr, mask ibv.SRQAttrMask, holds uint32, err error) error {
	if !errors.Is(err, syscall.EINVAL) {
		return err
	}
	if mask&ibv.SRQ_LIMIT != 0 && attr.SRQLimit > holds {
		return explain(fmt.Sprintf("srq_limit is %d, which exceeds the queue's %d receives", attr.SRQLimit, holds), err)
	}
	if mask&ibv.SRQ_MAX_WR != 0 {
		asked := *attr
		asked.MaxSGE = 0 // cannot be changed
		err = d.SRQ(&asked, err)
	}
	return err
}

// DM adds the reason to an error of allocating device memory.
func (d Device) DM(length uint64, err error) error {
	attr := new(ibv.DeviceAttrEx)
	if err == nil || libibverbs.QueryDeviceEx(d.C, nil, attr) != nil || length > 0 && length <= attr.MaxDMSize {
		return err
	}
	const reason = "%d bytes; it must be from 1 to the device's %d (max_dm_size)"
	return explain(fmt.Sprintf(reason, length, attr.MaxDMSize), err)
}

// MR adds the reason to an error of registering memory.
func MR(use ibv.AccessUse, access ibv.AccessFlags, address, length uint64, err error) error {
	switch {
	case !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EOPNOTSUPP):
		return err
	case length == 0:
		return explain("the memory is empty", err)
	case address+length < address && length != ^uint64(0):
		return explain(fmt.Sprintf("%d bytes at %#x end beyond the last address", length, address), err)
	}
	return explain(doubtfulAccess(use, access), err)
}

// Access returns text about a flag that is incompatible with the others or with the call, or "".
func Access(use ibv.AccessUse, access ibv.AccessFlags) string {
	if v, flag := ibv.CheckAccess(use, access); Refused(v) {
		return fmt.Sprintf("access %v: %v: %s", access, flag, v.Reason)
	}
	return ""
}

// doubtfulAccess returns text about a flag that not every device supports, or "".
func doubtfulAccess(use ibv.AccessUse, access ibv.AccessFlags) string {
	v, flag := ibv.CheckAccess(use, access)
	switch {
	case flag == 0 || v.Answer == ibv.AnswerYes:
		return ""
	case strings.HasPrefix(flag.String(), "IBV_"):
		return fmt.Sprintf("access %v: the device may not support %v", access, flag)
	}
	return fmt.Sprintf("access %v: unknown flag %v", access, flag)
}

package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// openQP is ibv_open_qp: another handle of a receiving XRC queue pair.
func openQP(c *context, address uint64) (uint64, runtime.Errno) {
	if address == 0 {
		return 0, einval
	}
	attr := at[ibv.QPOpenAttr](address)
	const needs = ibv.QP_OPEN_ATTR_NUM | ibv.QP_OPEN_ATTR_XRCD | ibv.QP_OPEN_ATTR_TYPE
	f := c.fabric()
	f.mu.Lock()
	defer f.unlock()
	handle := find[xrcd](uint64(attr.XRCD))
	if attr.CompMask&needs != needs || attr.CompMask >= ibv.QP_OPEN_ATTR_RESERVED || attr.QPType != ibv.QPT_XRC_RECV ||
		handle == nil || handle.device != c.device {
		return 0, einval
	}
	of := f.numbers.qp(attr.QPNum)
	if of == nil || of.kind != ibv.QPT_XRC_RECV || of.domain != handle.domain || of.device != c.device {
		return 0, einval
	}
	if c.device.gone {
		return 0, eio
	}
	record, errno := allocateOf[qpRecord](f) // a handle is no queue pair more
	if errno != 0 {
		return 0, errno
	}
	record.QPBase = ibv.QP{Context: c.address(), Handle: of.index, QPNum: of.number, State: of.state, QPType: of.kind}
	if attr.CompMask&ibv.QP_OPEN_ATTR_CONTEXT != 0 {
		record.QPBase.QPContext = attr.QPContext
	}
	record.index = ^uint32(0)
	c.uses++
	o := &openedQP{context: c, record: record, of: of}
	of.handles = append(of.handles, o)
	enter(record, o)
	return addressOf(record), 0
}

// openedQP is a handle that ibv_open_qp gave.
type openedQP struct {
	*context
	record *qpRecord
	of     *qp
	asyncs reports
}

func (o *openedQP) reported() *reports { return &o.asyncs }

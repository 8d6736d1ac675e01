// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package libibverbs

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// Error numbers that inline functions return themselves. They are the same on every Linux.
const (
	eperm  runtime.Errno = 1
	einval runtime.Errno = 22
)

// RegMR calls ibv_reg_mr, or ibv_reg_mr_iova2 if access has one of the flags that a library or a device may ignore
// (ibv.ACCESS_OPTIONAL_RANGE). C's macro ibv_reg_mr decides the same for flags known at compile time, by a parameter
// is_access_const, which Go omits. After NULL the error is errno.
//
//verbs:c struct ibv_mr *__ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, unsigned int access, int is_access_const)
//go:uintptrescapes
func RegMR(pd *ibv.PD, addr uintptr, length uint64, access ibv.AccessFlags) (*ibv.MR, error) {
	if access&ibv.AccessFlags(ibv.ACCESS_OPTIONAL_RANGE) == 0 {
		return RegMRSymbol(pd, addr, length, access)
	}
	return RegMRIOVA2(pd, addr, length, uint64(addr), access)
}

// RegMRIOVA calls ibv_reg_mr_iova, or ibv_reg_mr_iova2 like [RegMR]. After NULL the error is errno.
//
//verbs:c struct ibv_mr *__ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access, int is_access_const)
//go:uintptrescapes
func RegMRIOVA(pd *ibv.PD, addr uintptr, length, iova uint64, access ibv.AccessFlags) (*ibv.MR, error) {
	if access&ibv.AccessFlags(ibv.ACCESS_OPTIONAL_RANGE) == 0 {
		return RegMRIOVASymbol(pd, addr, length, iova, access)
	}
	return RegMRIOVA2(pd, addr, length, iova, access)
}

// ReregMR calls ibv_rereg_mr. The result is 0, or a negative ibv.ReregMRErrCode that describes the state of the region;
// the error then has errno, which may be 0.
//
//verbs:c int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
//go:uintptrescapes
func ReregMR(mr *ibv.MR, flags ibv.ReregMRFlags, pd *ibv.PD, addr uintptr, length uint64,
	access ibv.AccessFlags) (ibv.ReregMRErrCode, error) {
	result, errno, err := fnReregMR.Exported().Wide(4, length).Raw(uintptr(unsafe.Pointer(mr)), uintptr(int32(flags)),
		uintptr(unsafe.Pointer(pd)), addr, uintptr(length), uintptr(int32(access)))
	code := ibv.ReregMRErrCode(result)
	if err == nil && code != 0 {
		err = &runtime.CallError{Function: fnReregMR.Name, Errno: errno}
	}
	return code, err
}

// AllocMW calls ibv_alloc_mw, a slot of pd.context. After NULL the error is errno.
//
//verbs:c struct ibv_mw *ibv_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
func AllocMW(pd *ibv.PD, kind ibv.MWType) (*ibv.MW, error) {
	if pd == nil {
		return nil, fnAllocMW.Nil("pd")
	}
	context := pd.Context.Deref()
	if context == nil {
		return nil, fnAllocMW.Nil("pd.context")
	}
	return asObject[ibv.MW](fnAllocMW.Slot(uintptr(context.Ops.AllocMW)).Null(uintptr(unsafe.Pointer(pd)),
		runtime.Word(uint32(kind))))
}

// BindMW calls ibv_bind_mw, a slot of mw.context. It first rejects invalid arguments: a window that is not of type 1, a
// range without a region (EINVAL), or a region of another protection domain (EPERM). The error is the errno that C
// returns.
//
//verbs:c int ibv_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *mw_bind)
func BindMW(qp *ibv.QP, mw *ibv.MW, mwBind *ibv.MWBind) error {
	switch {
	case mw == nil:
		return fnBindMW.Nil("mw")
	case mwBind == nil:
		return fnBindMW.Nil("mw_bind")
	}
	info := &mwBind.BindInfo
	mr := info.MR.Deref()
	switch {
	case mw.Type != ibv.MW_TYPE_1, mr == nil && (info.Addr != 0 || info.Length != 0):
		return &runtime.CallError{Function: fnBindMW.Name, Errno: einval}
	case mr != nil && mw.PD != mr.PD:
		return &runtime.CallError{Function: fnBindMW.Name, Errno: eperm}
	}
	context := mw.Context.Deref()
	if context == nil {
		return fnBindMW.Nil("mw.context")
	}
	return fnBindMW.Slot(uintptr(context.Ops.BindMW)).Errno(uintptr(unsafe.Pointer(qp)), uintptr(unsafe.Pointer(mw)),
		uintptr(unsafe.Pointer(mwBind)))
}

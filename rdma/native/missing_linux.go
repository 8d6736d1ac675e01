// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// addMissing adds functions that fail as those of libibverbs do for a driver that lacks them: with EOPNOTSUPP, which
// they return or, if they return an object, store in errno.
func addMissing(all map[string]runtime.Func) {
	object := func([]uint64) (uint64, runtime.Errno) { return 0, syscall.EOPNOTSUPP }
	for _, name := range []string{"ibv_import_device", "ibv_import_pd", "ibv_import_mr", "ibv_import_dm",
		"ibv_alloc_dmah", "ibv_create_comp_cntr"} {
		all[name] = object
	}
	for _, name := range []string{"ibv_set_ece", "ibv_query_ece", "ibv_query_port_speed", "_ibv_query_comp_cntr_caps"} {
		all[name] = constant(uint64(syscall.EOPNOTSUPP))
	}
}

// fillMissing does the same for operations of contexts.
func (b *Backend) fillMissing(set func(*ibv.FuncPtr, runtime.SlotFunc)) {
	x := &b.slots.extended
	object := func(_, _, _, _, _, _ uint64) (uint64, runtime.Errno) { return 0, syscall.EOPNOTSUPP }
	for _, f := range []*ibv.FuncPtr{&x.AllocDMAH, &x.AllocNullMR, &x.CreateFlowActionESP, &x.CreateRWQIndTable,
		&x.CreateWQ} {
		set(f, object)
	}
	number := func(_, _, _, _, _, _ uint64) (uint64, runtime.Errno) { return uint64(syscall.EOPNOTSUPP), 0 }
	for _, f := range []*ibv.FuncPtr{&x.DeallocDMAH, &x.ModifyFlowActionESP, &x.DestroyFlowAction,
		&x.ModifyQPRateLimit, &x.ModifyCQ, &x.PostSRQOps, &x.DestroyRWQIndTable, &x.DestroyWQ, &x.ModifyWQ, &x.QueryRTValues} {
		set(f, number)
	}
}

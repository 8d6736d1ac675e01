// SPDX-License-Identifier: BSD-2-Clause

//go:build !goverbs_static

package runtime

const withoutC = "this build cannot use C libraries; only builds for linux on amd64, arm64, loong64, ppc64le and " +
	"riscv64 can"

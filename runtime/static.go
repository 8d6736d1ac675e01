// SPDX-License-Identifier: BSD-2-Clause

//go:build goverbs_static

package runtime

const withoutC = "this program was built with the tag goverbs_static and cannot use C libraries; for devices of the " +
	"kernel, use package rdma/native (native:NAME)"

// SPDX-License-Identifier: BSD-2-Clause

// Package processors measures the CPU time of the process.
package processors

// SPDX-License-Identifier: BSD-2-Clause

// Package processors tells how much of the processors a process uses.
package processors

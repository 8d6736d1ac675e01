// SPDX-License-Identifier: BSD-2-Clause

// Package rate converts link rates.
package rate

import "github.com/goverbs/goverbs/generated/ibv"

// rates lists the speed of each rate in lanes of 2.5 Gb/s, or 0 if C defines none, and in Mb/s.
//
// Man: ibv_rate_to_mult(3), ibv_rate_to_mbps(3)
var rates = []struct {
	rate       ibv.Rate
	mult, mbps int32
}{
	{ibv.RATE_2_5_GBPS, 1, 2500},
	{ibv.RATE_5_GBPS, 2, 5000},
	{ibv.RATE_10_GBPS, 4, 10000},
	{ibv.RATE_14_GBPS, 0, 14062},
	{ibv.RATE_20_GBPS, 8, 20000},
	{ibv.RATE_25_GBPS, 0, 25781},
	{ibv.RATE_28_GBPS, 11, 28125},
	{ibv.RATE_30_GBPS, 12, 30000},
	{ibv.RATE_40_GBPS, 16, 40000},
	{ibv.RATE_50_GBPS, 20, 53125},
	{ibv.RATE_56_GBPS, 0, 56250},
	{ibv.RATE_60_GBPS, 24, 60000},
	{ibv.RATE_80_GBPS, 32, 80000},
	{ibv.RATE_100_GBPS, 0, 103125},
	{ibv.RATE_112_GBPS, 0, 112500},
	{ibv.RATE_120_GBPS, 48, 120000},
	{ibv.RATE_168_GBPS, 0, 168750},
	{ibv.RATE_200_GBPS, 0, 206250},
	{ibv.RATE_300_GBPS, 0, 309375},
	{ibv.RATE_400_GBPS, 160, 425000},
	{ibv.RATE_600_GBPS, 240, 637500},
	{ibv.RATE_800_GBPS, 320, 850000},
	{ibv.RATE_1200_GBPS, 480, 1275000},
}

// Of returns ibv_rate_to_mult or ibv_rate_to_mbps, which return −1 for a rate without such a number.
func Of(number func(i int) int32) func(ibv.Rate) int32 {
	return func(r ibv.Rate) int32 {
		for i := range rates {
			if n := number(i); rates[i].rate == r && n != 0 {
				return n
			}
		}
		return -1
	}
}

// To returns mult_to_ibv_rate or mbps_to_ibv_rate, which return IBV_RATE_MAX for an unknown number.
func To(number func(i int) int32) func(int32) ibv.Rate {
	return func(n int32) ibv.Rate {
		for i := range rates {
			if number(i) == n && n != 0 {
				return rates[i].rate
			}
		}
		return ibv.RATE_MAX
	}
}

// Mult returns the number of 2.5 Gb/s lanes of a row.
func Mult(i int) int32 { return rates[i].mult }

// Mbps returns the Mb/s of a row.
func Mbps(i int) int32 { return rates[i].mbps }

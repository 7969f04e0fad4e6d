#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What Calico's own image starts for the backends vxlan and bird: the node is registered, gets the
# address of its tunnel, and Felix programs it; BIRD has the configuration that confd writes. When
# Felix ends, so does the container: the kernel kills BIRD, as it does in Calico's own image.
set -e
calico-node -startup
NODENAME=$(cat /var/lib/calico/nodename)
export NODENAME FELIX_FELIXHOSTNAME=$NODENAME FELIX_DATASTORETYPE=$DATASTORE_TYPE
calico-node -allocate-tunnel-addrs -allocate-tunnel-addrs-run-once
calico-node -allocate-tunnel-addrs &
calico-node -monitor-addresses &
calico-node -monitor-token &
if [ "$CALICO_NETWORKING_BACKEND" = bird ]; then
	mkdir -p /var/run/calico
	calico-node -confd &
	config=/etc/calico/confd/config/bird.cfg
	while :; do
		[ ! -s $config ] || bird -R -d -s /var/run/calico/bird.ctl -P /run/bird.pid -c $config || :
		sleep 0.2
	done &
fi
exec calico-node -felix

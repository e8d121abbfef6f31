#!/bin/sh
# The first process of a node's namespaces: makes what a machine's boot would, then starts containerd, kube-proxy and
# kubelet. When it ends, everything of the node ends with it.
#
# Set by the harness: NODE (name), HOME_DIR (the node's folder in the lab), BIN (programs built from Go modules),
# DEBIAN (unpacked packages), IMAGES (folder of image tars).
set -eu
hostname "$NODE"
mount --make-rshared /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/netns /run/lock /run/containerd

# A folder of the node's own at the usual place. Private first and shared again: else it stays in one group with where it
# came from, and every mount below it is seen at both places.
own() {
    mkdir -p "$HOME_DIR/$1" "$2"
    mount --bind "$HOME_DIR/$1" "$2"
    mount --make-private "$2"
    mount --make-shared "$2"
}
own kubelet /var/lib/kubelet
own containerd /var/lib/containerd
own cni /var/lib/cni
own basalt /var/lib/basalt
own pod-logs /var/log/pods
own container-logs /var/log/containers
own cni-conf /etc/cni/net.d

# The control groups as seen from the node's own: a fresh view of each hierarchy, rooted where this process was put.
hierarchies=$(ls /sys/fs/cgroup)
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
    mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
    for one in $hierarchies; do
        mkdir "/sys/fs/cgroup/$one"
        case $one in
        unified) mount -t cgroup2 cgroup2 "/sys/fs/cgroup/$one" ;;
        systemd) mount -t cgroup -o none,name=systemd cgroup "/sys/fs/cgroup/$one" ;;
        *) mount -t cgroup -o "$one" cgroup "/sys/fs/cgroup/$one" ;;
        esac
    done
fi

cp "$HOME_DIR/cni.conflist" /etc/cni/net.d/10-lab.conflist
PATH="$DEBIAN/usr/bin:$DEBIAN/usr/sbin:$PATH"
containerd --config "$HOME_DIR/containerd.toml" >>"$HOME_DIR/containerd.log" 2>&1 </dev/null &
until ctr --address /run/containerd/containerd.sock version >/dev/null 2>&1; do
    kill -0 $! || exit 1
    sleep 0.1
done
for image in "$IMAGES"/*.tar; do
    # Named by what is in it: one that is there already is not read again.
    mark="$HOME_DIR/containerd/imported-$(basename "$image")-$(stat -c %Y-%s "$image")"
    [ -e "$mark" ] || { ctr -n k8s.io images import "$image" && touch "$mark"; }
done
"$BIN/kube-proxy" --config "$HOME_DIR/kube-proxy.yaml" >>"$HOME_DIR/kube-proxy.log" 2>&1 </dev/null &
"$BIN/kubelet" --config "$HOME_DIR/kubelet.yaml" --kubeconfig "$HOME_DIR/kubelet.kubeconfig" \
    --hostname-override "$NODE" --node-ip "$ADDRESS" --v 2 >>"$HOME_DIR/kubelet.log" 2>&1 </dev/null &
# Orphans of containers come here: wait takes them.
wait

//! The socket itself, and many callers at once.

use crate::support::{Driver, MIB, NODE, connect, filesystem};
use csi::RunError;
use csi::proto::registration::registration_client::RegistrationClient;
use csi::proto::registration::{InfoRequest, RegistrationStatus};
use csi::proto::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, DeleteVolumeRequest, GetPluginInfoRequest};
use std::os::unix::fs::PermissionsExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

#[tokio::test]
async fn garbage_on_the_socket_ends_its_connection_and_nothing_else() {
    let driver = Driver::start().await;
    driver.identity().get_plugin_info(GetPluginInfoRequest {}).await.unwrap();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut frame_too_long = preface.clone();
    frame_too_long.extend([0xff; 64]);
    for garbage in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0; 4096], (0..=255).collect(), preface[..9].to_vec(), frame_too_long]
    {
        let mut stream = UnixStream::connect(driver.socket()).await.unwrap();
        stream.write_all(&garbage).await.ok();
        stream.shutdown().await.ok();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok();
        driver.identity().get_plugin_info(GetPluginInfoRequest {}).await.unwrap();
    }
    assert_eq!(driver.socket().metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_hundred_volumes_at_once_leave_nothing() {
    let driver = Driver::start().await;
    let mut tasks = Vec::new();
    for number in 0..100 {
        let mut client = driver.controller();
        let request = crate::support::create_request(&format!("claim-{number}"), 100 * MIB);
        tasks.push(tokio::spawn(async move {
            let volume_id = client.create_volume(request).await.unwrap().into_inner().volume.unwrap().volume_id;
            let publish = ControllerPublishVolumeRequest {
                volume_id: volume_id.clone(),
                node_id: NODE.into(),
                volume_capability: Some(filesystem("")),
                ..Default::default()
            };
            client.controller_publish_volume(publish).await.unwrap();
            let unpublish = ControllerUnpublishVolumeRequest { volume_id: volume_id.clone(), ..Default::default() };
            client.controller_unpublish_volume(unpublish).await.unwrap();
            client.delete_volume(DeleteVolumeRequest { volume_id, ..Default::default() }).await.unwrap();
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(driver.masters.count(), 0);
}

#[tokio::test]
async fn kubelet_learns_name_and_socket_and_its_refusal_ends_the_driver() {
    let dir = tempfile::tempdir().unwrap();
    let socket = csi::registration::socket_in(dir.path());
    let registry = dir.path().to_owned();
    let registered = tokio::spawn(async move {
        csi::registration::register(&registry, "/plugins/csi.sock".as_ref(), std::future::pending()).await
    });
    let mut kubelet = RegistrationClient::new(connect(&socket).await);
    let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", csi::DRIVER_NAME));
    assert_eq!((info.endpoint.as_str(), info.supported_versions), ("/plugins/csi.sock", vec!["1.0.0".to_owned()]));
    let taken = RegistrationStatus { plugin_registered: true, error: String::new() };
    kubelet.notify_registration_status(taken).await.unwrap();
    let refused = RegistrationStatus { plugin_registered: false, error: "another driver has the name".into() };
    kubelet.notify_registration_status(refused).await.ok();
    let error = registered.await.unwrap().unwrap_err();
    assert!(matches!(&error, RunError::Refused(why) if why == "another driver has the name"), "{error}");
    assert!(!socket.exists());
}
